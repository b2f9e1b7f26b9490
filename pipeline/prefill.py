"""Bringing a prompt into the language model's cache before it is needed.

While the user speaks, their words go into the model, so that at the end of the turn only the last few are left
to compute. The model is asked there and then how likely they are the last ones, which costs nothing more; when
no word is added, the end of the turn need not ask again. One at a time, and never beside a reply: the model has
one slot for a conversation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence

from ..llm.base import ChatModel, ChatRequest, Limits, Message, ToolUse
from .endpointing import EndOfTurn
from .errors import AntiphonError
from .logs import where

log = logging.getLogger(__name__)

Spawn = Callable[[Coroutine[None, None, None], str], asyncio.Task[None]]


class Prefill:
    """One conversation's. owner: as in its `ChatRequest`s. spawn: starts a task that the session ends.

    end_of_turn: the conversation's too.
    """

    def __init__(self, chat: ChatModel, owner: str, spawn: Spawn, end_of_turn: EndOfTurn) -> None:
        self._chat = chat
        self._end_of_turn = end_of_turn
        self._owner = owner
        self._spawn = spawn
        self._task: asyncio.Task[None] | None = None
        self._last: tuple[Sequence[Message], str, ToolUse] | None = None

    def bring(self, history: Sequence[Message], words: str, tools: ToolUse) -> None:
        """Compute the history, and what the user says after it, in the background; nothing happens while
        another is computed, or for the last one again."""
        wanted = history, words, tools
        if history and wanted != self._last and self._task is None:
            self._last = wanted
            self._task = self._spawn(self._run(*wanted), "prefill")
            self._task.add_done_callback(self._idle)

    def stop(self) -> None:
        """Cancel what runs: its slot is wanted. What it has computed stays in the cache."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self, history: Sequence[Message], words: str, tools: ToolUse) -> None:
        if words and await self._end_of_turn.bring(history, words, tools):
            return
        prompt = [*history, Message("user", words)] if words else history
        request = ChatRequest(prompt, self._owner, Limits(max_tokens=0), tools=tools, background=True)
        try:
            async with self._chat.stream(request) as deltas:
                async for _ in deltas:
                    pass
        except AntiphonError as error:
            log.debug("no prefill: %s", error)
        except Exception as error:
            # Nobody waits for it: a fault in it must not end the session.
            log.error("a prefill failed: %s", where(error))

    def _idle(self, task: asyncio.Task[None]) -> None:
        # Not in a finally of the task, which a task cancelled before its first step never reaches.
        self._task = None
