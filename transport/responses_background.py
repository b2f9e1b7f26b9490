"""Responses that nobody waits for: who runs them, how many, who follows what they do, what ends them.

    start ──▶ waits for its turn ──▶ runs ──▶ its events, for any number of followers, at any time later
                     cancel, drain ──▶ the work is cancelled, and awaited

A follower that leaves ends nothing. How many wait and run is bounded; how many run at a time is too, so that
callers who do wait find a slot of the engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from ..pipeline.errors import Overloaded
from ..pipeline.logs import where

log = logging.getLogger("antiphon.server")

LAST_SECONDS = 5.0
"""What work that was cancelled when the server drains may take to end."""


class TooMuchInBackground(Overloaded):
    code = "too_many_background_responses"


class Track:
    """The events of one response while it runs. events: as they are sent, a list that the caller keeps."""

    def __init__(self, events: list[bytes]) -> None:
        self.events = events
        self.ended = False
        self._more = asyncio.Event()

    def publish(self, events: list[bytes]) -> None:
        self.events += events
        self._wake()

    def end(self) -> None:
        """Nothing follows."""
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        more, self._more = self._more, asyncio.Event()
        more.set()

    async def follow(self, after: int = -1) -> AsyncGenerator[bytes]:
        """The events after the one of that number, until the last. Cancelling is safe."""
        at = after + 1
        while True:
            more = self._more
            while at < len(self.events):
                at += 1
                yield self.events[at - 1]
            if self.ended:
                return
            await more.wait()


class Background:
    """most: that wait or run. at_a_time: that run."""

    def __init__(self, most: int = 32, at_a_time: int = 2) -> None:
        self._most = most
        self._turn = asyncio.Semaphore(at_a_time)
        self._running: dict[str, tuple[Track, asyncio.Task[None]]] = {}

    def __len__(self) -> int:
        """How many wait or run."""
        return len(self._running)

    def start(
        self, id: str, track: Track, work: Callable[[], Coroutine[Any, Any, None]], ended: Callable[[], None]
    ) -> None:
        """Run `work` when it is its turn.

        ended: called once, however it ends, before the track's followers hear of it; what it publishes they
        hear too. Raises Overloaded when there are too many.
        """
        if len(self._running) >= self._most:
            raise TooMuchInBackground(
                f"{self._most} responses wait or run in the background (responses.max_background); try again."
            )

        async def run() -> None:
            async with self._turn:
                await work()

        def over(task: asyncio.Task[None]) -> None:
            # Here, not in run: a task that is cancelled before it began runs nothing.
            self._running.pop(id, None)
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("a response in the background failed: %s", where(error))
            try:
                ended()
            finally:
                track.end()

        task = asyncio.create_task(run(), name=f"background-{id}")
        self._running[id] = (track, task)
        task.add_done_callback(over)

    def track(self, id: str) -> Track | None:
        """Of one that waits or runs."""
        found = self._running.get(id)
        return None if found is None else found[0]

    async def cancel(self, id: str) -> None:
        """Cancel one, and return when it has ended; at once for one that does not run."""
        if (found := self._running.get(id)) is None:
            return
        track, task = found
        task.cancel()
        async for _ in track.follow(len(track.events) - 1):
            pass

    async def drain(self, seconds: float) -> None:
        """Let those that run finish for at most `seconds`, then cancel them and wait for their end."""
        tasks = [task for _, task in self._running.values()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=LAST_SECONDS)
