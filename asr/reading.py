"""Reads a recording: the shell around `recording`, from a file to passages of text.

    file --thread--> blocks --detector--> chunks (a few) --recogniser--> passages

The three overlap: while the recogniser reads one chunk, the next are decoded and cut. What waits between them is
bounded, so that a long file costs no more memory than a short one. Its windows are wanted later than any
conversation's, so those go first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np

from ..pipeline.audio import Framer
from ..pipeline.engines import Engines, VadInput
from ..pipeline.errors import AntiphonError, BadRequest, EngineFailed, TooLarge
from ..pipeline.events import Samples
from ..pipeline.logs import where
from ..pipeline.threads import to_the_end
from ..pipeline.worker import Worker
from .base import SAMPLE_RATE, Reading, Transcription, Window
from .formats import iter_decode
from .recording import Chunk, Part, Passage, Planner, Stitcher, arranged, unread
from .vad import FRAME, VadState

PATIENCE = 10.0
"""Seconds after which a window of a recording is wanted; a conversation's are wanted at once."""
BLOCK = 10.0
"""Seconds decoded at a time."""
VAD_FRAMES = 32
"""At most so many frames go to the detector in one call, so that conversations need not wait for it."""
AHEAD = 2
"""Chunks that may wait for the recogniser."""
DEPTH = 4
"""How often what was not read is read again: the rest of the rest, or halves of halves, which count double."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Task:
    """What to read, and how. language: its code, None to detect; owner: names the work in the queues.

    threshold, padding, silence: as `Planner` has them. max_seconds: of sound, None for no limit.
    """

    owner: str
    reading: Reading = field(default_factory=Reading)
    language: str | None = None
    threshold: float = 0.5
    padding: float = 0.3
    silence: float = 0.2
    max_seconds: float | None = None


class Recording:
    """One file being read.

    seconds: of sound so far, and of all of it once `passages` has ended. language: None while it is not known.
    """

    def __init__(
        self, engines: Engines, recognizer: Worker[Window, Transcription], file: BinaryIO, task: Task
    ) -> None:
        self.language = task.language
        self._samples = 0
        self._engines = engines
        self._recognizer = recognizer
        self._file = file
        self._task = task
        self._chunks: asyncio.Queue[Chunk | None] = asyncio.Queue(AHEAD)
        self._failure: Exception | None = None
        self._planner = Planner(threshold=task.threshold, padding=task.padding, silence=task.silence)
        self._state = VadState()

    @property
    def seconds(self) -> float:
        return self._samples / SAMPLE_RATE

    async def passages(self) -> AsyncGenerator[Passage, None]:
        """The text, as it is read. Iterate it once.

        Raises BadRequest for a file that cannot be decoded, is too long (audio_too_long), or a language that
        the recogniser does not know; Overloaded, EngineFailed.
        """
        stitcher = Stitcher()
        while (chunk := await self._chunks.get()) is not None:
            for part in await self._read(chunk, DEPTH):
                for passage in stitcher.add(*part):
                    yield passage
        if self._failure is not None:
            raise self._failure

    # --- from the file to chunks ------------------------------------------------------------------------

    async def listen(self) -> None:
        """Decode and cut the file, to its end. Its errors are raised by `passages`."""
        try:
            await self._listen()
        except Exception as error:
            self._failure = error
        await self._chunks.put(None)

    async def _listen(self) -> None:
        limit = self._task.max_seconds
        blocks = iter_decode(self._file, chunk_seconds=BLOCK, max_seconds=limit)
        framer = Framer(FRAME)
        try:
            while (block := await to_the_end(lambda: next(blocks, None))) is not None:
                self._samples += len(block)
                await self._hear(framer.push(block))
            rest = framer.rest()
            if len(rest):
                await self._hear([np.pad(rest, (0, FRAME - len(rest)))])
        except TooLarge as error:
            raise BadRequest(
                f"The recording is longer than {limit:g} s (http.max_audio_seconds).",
                param="file",
                code="audio_too_long",
            ) from error
        finally:
            await to_the_end(blocks.close)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
        for chunk in self._planner.finish():
            await self._chunks.put(chunk)

    async def _hear(self, frames: list[Samples]) -> None:
        now = asyncio.get_running_loop().time
        for at in range(0, len(frames), VAD_FRAMES):
            some = np.stack(frames[at : at + VAD_FRAMES])
            try:
                heard = await self._engines.vad.submit(
                    VadInput(some, self._state), owner=self._task.owner, deadline=now() + PATIENCE
                )
            except AntiphonError:
                raise
            except Exception as error:
                log.error("the speech detector failed: %s", where(error))
                raise EngineFailed("The speech detector failed; the server's log has the reason.") from None
            self._state = heard.state
            for chunk in self._planner.push(some.reshape(-1), heard.probabilities):
                await self._chunks.put(chunk)

    # --- from chunks to text ----------------------------------------------------------------------------

    async def _read(self, chunk: Chunk, depth: int) -> list[Part]:
        """What a chunk says, one segment to a part, in order; what was left unread is read again."""
        found = await self._decode(chunk)
        if self.language is None and found.text:
            self.language = found.language
        kept, again = unread(chunk, found)
        parts: list[Part] = []
        left = depth - (1 if kept.segments else 2)
        if left >= 0:
            for part in again:
                parts += await self._read(part, left)
        return arranged((chunk, kept), parts)

    async def _decode(self, chunk: Chunk) -> Transcription:
        speech = chunk.spans[-1][1] - chunk.begin if chunk.spans else 0.0
        window = Window(chunk.samples, language=self.language, reading=self._task.reading, speech=speech)
        deadline = asyncio.get_running_loop().time() + PATIENCE
        try:
            return await self._recognizer.submit(
                window, owner=self._task.owner, deadline=deadline, bucket=self._engines.bucket(window)
            )
        except AntiphonError:
            raise
        except Exception as error:
            log.error("the recogniser failed: %s", where(error))
            raise EngineFailed("The recogniser failed; the server's log has the reason.") from None


@asynccontextmanager
async def read(
    engines: Engines, recognizer: Worker[Window, Transcription], file: BinaryIO, task: Task
) -> AsyncGenerator[Recording, None]:
    """Read a recording. file: open for reading, at its beginning; it stays open, and is not touched any more
    once the context is left. Leaving it, or being cancelled in it, takes what waits out of the queues."""
    recording = Recording(engines, recognizer, file, task)
    listening = asyncio.create_task(recording.listen(), name="listen")
    try:
        yield recording
    finally:
        listening.cancel()
        await asyncio.wait([listening])
