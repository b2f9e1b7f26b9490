"""Responses outside of the conversation, beside the active one: they take no turn and nobody talks over them.

How many run at once is bounded; whoever has the floor, and what is said, is none of their business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from .events import CreateResponse
from .reply import Reply

MOST = 4
"""At once, of one conversation. They share one slot of the language model, each in its turn."""


class Asides:
    """One conversation's. spawn: starts a task that the session ends. begin: makes a running reply under a
    revision; those of asides are negative, and so never the turn machine's."""

    def __init__(
        self,
        spawn: Callable[[Coroutine[None, None, None], str], asyncio.Task[None]],
        begin: Callable[[int, CreateResponse], Reply],
    ) -> None:
        self._spawn = spawn
        self._begin = begin
        self._started = 0
        self._waiting = 0
        self._replies: dict[int, Reply] = {}

    @property
    def full(self) -> bool:
        return self._waiting + len(self._replies) >= MOST

    def start(self, asked: CreateResponse, after: asyncio.Task[None] | None) -> None:
        """after: what has to be known first, the transcript of what was said last."""
        self._started += 1
        self._waiting += 1
        task = self._spawn(self._run(-self._started, asked, after), f"aside-{self._started}")
        task.add_done_callback(self._arrived)

    def find(self, response_id: str) -> Reply | None:
        """One that has not ended for the client."""
        going = (reply for reply in self._replies.values() if not reply.closed)
        return next((reply for reply in going if reply.response.id == response_id), None)

    async def _run(self, revision: int, asked: CreateResponse, after: asyncio.Task[None] | None) -> None:
        if after is not None:
            await asyncio.wait([after])
        reply = self._begin(revision, asked)
        assert reply.task is not None
        self._replies[revision] = reply
        reply.task.add_done_callback(lambda _: self._replies.pop(revision))
        reply.release()

    def _arrived(self, task: asyncio.Task[None]) -> None:
        self._waiting -= 1
