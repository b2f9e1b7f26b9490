"""A session's ear and its scribe: audio to frames with a speech probability, and a turn's audio to text.

The ear keeps the session's clock, the count of whole frames, and a little history, since a turn begins
before the detector is sure of it. The scribe decodes a turn's window while it is open (partials, one at a
time, worth nothing when late) and finishes it at a candidate end. Neither decides anything about turns.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

import numpy as np

from ..asr.base import SAMPLE_RATE, Transcription, Window
from ..asr.streaming import Utterance, stretch
from ..asr.vad import FRAME, FRAME_SECONDS, VadState
from .audio import Framer
from .engines import Engines, VadInput
from .errors import AntiphonError, EngineFailed
from .events import Samples
from .logs import where
from .metrics import TurnTrace
from .prefill import Spawn
from .worker import Dropped

HISTORY = 6.0
"""Seconds of audio kept before a turn begins: the longest pre-roll (5 s), the detector's delay, and room."""

VAD_FRAMES = 32
"""At most so many frames (1 s) go to the detector in one call, so a long append does not hold it."""

log = logging.getLogger(__name__)


class Ear:
    """One session's audio, frame by frame. owner: the session's name in the detector's queue."""

    def __init__(self, engines: Engines, owner: str) -> None:
        self._vad = engines.vad
        self._owner = owner
        self._framer = Framer(FRAME)
        self._state = VadState()
        self._frames = 0
        self._history: deque[Samples] = deque(maxlen=int(HISTORY / FRAME_SECONDS))

    @property
    def at(self) -> float:
        """The session's clock: seconds of audio received, in whole frames."""
        return self._frames * FRAME_SECONDS

    async def hear(
        self, samples: Samples, *, detect: bool
    ) -> AsyncGenerator[tuple[Samples, float, float], None]:
        """For each whole frame: its samples, its probability of speech (0 unless `detect`), and the seconds
        of audio that came with it and stand after it. The clock moves with each.

        When the detector fails, frames go on with probability 0, and EngineFailed is raised after the last.
        """
        frames = self._framer.push(samples)
        failure: Exception | None = None
        for first in range(0, len(frames), VAD_FRAMES):
            some = np.stack(frames[first : first + VAD_FRAMES])
            probabilities = np.zeros(len(some), np.float32)
            if detect:
                now = asyncio.get_running_loop().time()
                try:
                    heard = await self._vad.submit(
                        VadInput(some, self._state), owner=self._owner, deadline=now
                    )
                    self._state, probabilities = heard.state, heard.probabilities
                except Exception as error:
                    failure = error
            for i, (frame, probability) in enumerate(zip(some, probabilities, strict=True), first + 1):
                self._frames += 1
                self._history.append(frame)
                yield frame, float(probability), (len(frames) - i) * FRAME_SECONDS
        if failure is not None:
            log.error("the speech detector failed: %s", where(failure))
            raise EngineFailed("the speech detector failed; the server's log has the reason") from None

    def rest(self) -> Samples:
        """What is left of the last frame, filled up with silence to be a whole one, so that no sample of a turn
        is lost; empty when nothing is left."""
        left = self._framer.rest()
        return np.pad(left, (0, FRAME - len(left))) if len(left) else left

    def drop(self) -> None:
        """Forget what is left of the last frame."""
        self._framer.rest()

    def since(self, start: float) -> Samples:
        """The audio from `start` seconds to now, as far as the history goes back."""
        held = np.concatenate(self._history)
        return held[max(0, len(held) - round((self.at - start) * SAMPLE_RATE)) :]


@dataclass(slots=True, eq=False)
class OpenTurn:
    """The user's turn while it is open, and after it until its transcript is known.

    start: seconds on the session's clock. ended: event loop time of the last speech sample, as far as known.
    committed: the revision with which it became an item. texts, failed: what each revision's final decode
    said, or why it said nothing.
    over: the probability that the last candidate end was the end.
    """

    item_id: str
    number: int
    start: float
    utterance: Utterance
    ended: float = 0.0
    duration: float = 0.0
    committed: int | None = None
    final: asyncio.Task[None] | None = None
    texts: dict[int, str] = field(default_factory=dict[int, str])
    failed: dict[int, AntiphonError] = field(default_factory=dict[int, AntiphonError])
    transcript_at: float | None = None
    over: float | None = None
    launched: int = 0
    discarded: int = 0
    wasted_ms: float = 0.0

    def heard(self, trace: TurnTrace, at: float) -> None:
        """What is known of it when a reply begins, at `at` on the session's clock."""
        trace.turn = self.number
        trace.audio_seconds = self.duration or at - self.start
        trace.transcript = self.texts.get(trace.revision, "")
        trace.words = len(trace.transcript.split())
        if self.transcript_at is not None:
            trace.transcript_final = (self.transcript_at - self.ended) * 1000

    def closed(self, trace: TurnTrace) -> None:
        """What it has cost when its reply is let out."""
        trace.audio_seconds = self.duration
        trace.launched, trace.discarded, trace.wasted_ms = self.launched, self.discarded, self.wasted_ms
        trace.over = self.over


class Scribe:
    """Decodes a session's turns.

    interval: seconds after which a waiting partial is worth nothing, when the recogniser is free.
    spawn: starts a task that the session ends.
    """

    def __init__(self, engines: Engines, owner: str, interval: float, spawn: Spawn) -> None:
        self._engines = engines
        self._owner = owner
        self._interval = interval
        self._spawn = spawn
        self._running: tuple[OpenTurn, Window, asyncio.Task[None]] | None = None

    @property
    def busy(self) -> bool:
        """A partial is in flight."""
        return self._running is not None

    @property
    def stretch(self) -> float:
        """How much less often partials shall come than when the recogniser is free, 1 or more."""
        return stretch(self._engines.english.waited, self._interval)

    def partial(self, turn: OpenTurn, heard: Callable[[OpenTurn], None]) -> None:
        """Start to decode the open window as it is now, and call `heard` when its words are in the turn.

        Not while `busy`. Failures are logged only: the next one may do.
        """
        window = turn.utterance.window(final=False)
        task = self._spawn(self._partial(turn, window, heard), "partial")
        self._running = turn, window, task
        task.add_done_callback(self._idle)

    def _idle(self, task: asyncio.Task[None]) -> None:
        self._running = None

    async def _partial(self, turn: OpenTurn, window: Window, heard: Callable[[OpenTurn], None]) -> None:
        deadline = asyncio.get_running_loop().time() + self._interval * self.stretch
        try:
            turn.utterance.accept(window, await self._decode(window, deadline))
            heard(turn)
        except Dropped:
            pass
        except AntiphonError as error:
            log.warning("a partial decode failed: %s", error)

    async def final(self, turn: OpenTurn) -> str:
        """The text of all the turn's audio so far.

        A partial in flight that holds all of it serves as the final; any other is given up. Raises
        AntiphonError when the recogniser fails. Cancelling takes a waiting decode out of the queue.
        """
        upto = turn.utterance.seconds
        if self._running is not None and self._running[0] is turn:
            _, window, task = self._running
            if turn.utterance.covers(window):
                await asyncio.wait([task])
            else:
                task.cancel()  # it would be decoded before or after this for nothing
        while not turn.utterance.reaches(upto):
            window = turn.utterance.window(final=True)
            now = asyncio.get_running_loop().time()
            turn.utterance.accept(window, await self._decode(window, now))
        return turn.utterance.text

    async def _decode(self, window: Window, deadline: float) -> Transcription:
        recognizer = self._engines.english
        try:
            if window.language != "en":
                recognizer = await self._engines.multilingual()
            return await recognizer.submit(
                window,
                owner=self._owner,
                deadline=deadline,
                bucket=self._engines.bucket(window),
                droppable=not window.final,
            )
        except (AntiphonError, Dropped):
            raise
        except Exception as error:
            log.error("the recogniser failed: %s", where(error))
            raise EngineFailed("the recogniser failed; the server's log has the reason") from None
