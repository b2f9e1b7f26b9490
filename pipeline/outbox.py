"""What waits for the client: control events always find room, audio waits its turn and can be flushed.

Bounded twice: at most `max_audio` pieces of audio (the reply waits beyond that, and so the model), and at most
`max_events` entries in all, beyond which the client is taken to have stopped reading.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from .errors import AntiphonError
from .events import Output, OutputAudio


class NotReading(AntiphonError):
    """The client does not read what it is sent."""

    status = 408
    code = "client_not_reading"


class Outbox:
    def __init__(self, *, max_audio: int = 32, max_events: int = 4096) -> None:
        self.max_audio = max_audio
        self.max_events = max_events
        self._entries: deque[Output] = deque()
        self._audio = 0
        self._closed = False
        self._flushed: deque[str] = deque(maxlen=8)
        self._wake: set[asyncio.Future[None]] = set()

    def put(self, output: Output) -> None:
        """Add a control event, at once. Raises NotReading when `max_events` wait; nothing after `close`."""
        if self._closed:
            return
        if len(self._entries) >= self.max_events:
            raise NotReading(f"{self.max_events} events wait unread")
        self._entries.append(output)
        self._notify()

    async def put_audio(self, output: OutputAudio) -> None:
        """Add audio, waiting for room. Cancelling adds nothing, nor does a flush while it waits."""
        while self._audio >= self.max_audio and not self._closed:
            await self._wait()
        if not self._closed and output.response_id not in self._flushed:
            self._audio += 1
            self.put(output)

    def flush(self, response_id: str) -> float:
        """Drop a response's audio that has not left, and what still comes; returns the seconds dropped."""
        self._flushed.append(response_id)
        dropped = [e for e in self._entries if isinstance(e, OutputAudio) and e.response_id == response_id]
        if dropped:
            gone = set(map(id, dropped))
            self._entries = deque(e for e in self._entries if id(e) not in gone)
            self._audio -= len(dropped)
            self._notify()
        return sum(len(e.samples) / e.sample_rate for e in dropped)

    def close(self) -> None:
        """No more is added; what waits can still be read. Idempotent."""
        self._closed = True
        self._notify()

    async def read(self) -> AsyncIterator[Output]:
        """Everything in order, until `close` and empty. One reader."""
        while True:
            while not self._entries:
                if self._closed:
                    return
                await self._wait()
            output = self._entries.popleft()
            if isinstance(output, OutputAudio):
                self._audio -= 1
                self._notify()
            yield output

    def _notify(self) -> None:
        for future in self._wake:
            if not future.done():
                future.set_result(None)

    async def _wait(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._wake.add(future)
        try:
            await future
        finally:
            self._wake.discard(future)
