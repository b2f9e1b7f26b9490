"""Service-time models: engines that compute nothing and take known times, so that what the service itself costs,
and what its scheduler's order is worth, shows with many more sessions than this machine has models for.

Everything around them is the shipped program: sockets, codec, session, turn machine, workers, scheduler.

Every speaker is a tone, and the tone is a number (`canary`). The recogniser reads the number from the samples it
is given, the chat model repeats it from the words, the voice speaks it as a tone again; whoever hears another
number than their own has met somebody else's conversation.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ..asr.base import SAMPLE_RATE, Transcription, Window
from ..llm.base import ChatRequest, Delta
from ..pipeline.admission import Service
from ..pipeline.engines import Engines, VadInput, VadOutput
from ..pipeline.events import Samples, Usage
from ..pipeline.scheduler import Scheduler, Work
from ..pipeline.worker import Worker
from ..tts.base import Voice

LOWEST, STEP = 300.0, 4.0
"""Hz of canary 0, and between two. A tone of half a second is told from its neighbours."""

SPECTRUM = 2**15
"""Samples of the spectrum: at 16 kHz, half a hertz each."""

SYLLABLES = ("ba", "de", "fi", "go", "hu", "ja", "ke", "li", "mo", "nu")

QUIET = 0.01
"""Root mean square below which there is silence."""

CAPACITY = 8192
"""Pieces of work that may wait for a model."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds that the models take, about those of a small GPU.

    vad: a call. asr, asr_second: a batch, and each second of its longest window. batch: windows at a time.
    token: of a reply, first: the first of one. tts: a clause.
    """

    vad: float = 0.0002
    asr: float = 0.02
    asr_second: float = 0.005
    batch: int = 4
    first: float = 0.04
    token: float = 0.005
    tts: float = 0.008


# --- canaries -------------------------------------------------------------------------------------------


def canary(number: int, seconds: float, rate: int, level: float = 0.3) -> Samples:
    """The tone of a number."""
    at = np.arange(round(seconds * rate)) / rate
    return (level * np.sin(2 * np.pi * (LOWEST + STEP * number) * at)).astype(np.float32)


def heard(samples: Samples, rate: int) -> int | None:
    """The number whose tone this is; None for silence."""
    if not len(samples) or np.sqrt(np.mean(np.square(samples))) < QUIET:
        return None
    size = SPECTRUM * max(1, rate // SAMPLE_RATE)
    spectrum = np.abs(np.fft.rfft(samples[-size:], size))
    return round((int(spectrum.argmax()) * rate / size - LOWEST) / STEP)


def name(number: int) -> str:
    """A number as a word, which no reader of figures changes on its way to the voice: 17 is Zdeli."""
    return "Z" + "".join(SYLLABLES[int(digit)] for digit in str(number))


def numbers(text: str) -> set[int]:
    """The canaries that a text names."""
    named = re.findall(rf"\bz((?:{'|'.join(SYLLABLES)})+)\b", text.lower())
    return {
        int("".join(str(SYLLABLES.index(word[at : at + 2])) for at in range(0, len(word), 2)))
        for word in named
    }


# --- schedulers -----------------------------------------------------------------------------------------


Payload = TypeVar("Payload")


class Measured(Scheduler[Payload]):
    """The shipped scheduler, with the time spent in it; or, with `fifo`, a plain queue in its place: first come,
    first served, in the same batches, and whatever was asked for is done, late or not."""

    def __init__(self, *, max_batch: int = 1, fifo: bool = False) -> None:
        super().__init__(max_batch=max_batch, capacity=CAPACITY)
        self.spent = 0.0
        self._fifo = fifo

    def rank(self, work: Work[Payload]) -> float:
        return 0.0 if self._fifo else super().rank(work)

    def stale(self, work: Work[Payload], now: float) -> bool:
        return not self._fifo and super().stale(work, now)

    def add(self, work: Work[Payload]) -> None:
        began = time.perf_counter()
        super().add(work)
        self.spent += time.perf_counter() - began

    def remove(self, work: Work[Payload]) -> None:
        began = time.perf_counter()
        super().remove(work)
        self.spent += time.perf_counter() - began

    def next_batch(self, now: float) -> tuple[list[Work[Payload]], list[Work[Payload]]]:
        began = time.perf_counter()
        found = super().next_batch(now)
        self.spent += time.perf_counter() - began
        return found


# --- engines --------------------------------------------------------------------------------------------


class SimulatedChat:
    """Says the number of the last message twice. Any number of replies at a time, as a big GPU has slots."""

    def __init__(self, times: Times) -> None:
        self._times = times
        self._report: Callable[[Service], None] = lambda service: None

    @property
    def waiting(self) -> int:
        return 0

    def watch(self, report: Callable[[Service], None]) -> None:
        self._report = report

    @asynccontextmanager
    async def stream(self, request: ChatRequest) -> AsyncGenerator[AsyncIterator[Delta]]:
        began = asyncio.get_running_loop().time()
        try:
            yield self._deltas(request)
        finally:
            took = asyncio.get_running_loop().time() - began
            self._report(Service("llm", 0.0, took, 1, not request.background))

    async def _deltas(self, request: ChatRequest) -> AsyncIterator[Delta]:
        await asyncio.sleep(self._times.first)
        if request.limits.max_tokens == 0:
            return
        named = " and ".join(map(name, sorted(numbers(request.messages[-1].content)))) or "nobody"
        words = f"You are {named}. Good bye, {named}.".split(" ")
        for count, word in enumerate(words):
            await asyncio.sleep(self._times.token)
            yield Delta(word if count == 0 else " " + word)
        yield Delta("", "stop", Usage(input_tokens=10, output_tokens=len(words)))


class SimulatedVoice:
    """Speaks a clause as 0.6 s of the tone of the number in it; one without a number is silent."""

    sample_rate = 24_000
    voices: tuple[str, ...] = ("heart",)

    def __init__(self, times: Times, scheduler: Measured[str]) -> None:
        self._times = times
        self._worker: Worker[str, Samples] = Worker("tts", self._run, scheduler=scheduler)

    @property
    def waiting(self) -> int:
        return len(self._worker)

    def watch(self, report: Callable[[Service], None]) -> None:
        self._worker.watch(report)

    @asynccontextmanager
    async def synthesize(
        self, text: str, voice: Voice, *, owner: str, deadline: float
    ) -> AsyncGenerator[AsyncIterator[Samples]]:
        yield self._chunks(text, owner, deadline)

    async def _chunks(self, text: str, owner: str, deadline: float) -> AsyncIterator[Samples]:
        yield await self._worker.submit(text, owner=owner, deadline=deadline)

    def _run(self, texts: Sequence[str]) -> Sequence[Samples]:
        time.sleep(self._times.tts)
        named = [numbers(text) for text in texts]
        return [
            canary(min(found, default=0), 0.6, self.sample_rate, 0.3 if found else 0.0) for found in named
        ]

    async def aclose(self) -> None:
        await self._worker.aclose()


@asynccontextmanager
async def simulated(
    times: Times, *, fifo: bool = False
) -> AsyncGenerator[tuple[Engines, list[Measured[Any]]]]:
    """A server's engines, and the schedulers of their queues."""

    def transcribe(windows: Sequence[Window]) -> list[Transcription]:
        time.sleep(times.asr + times.asr_second * max(window.seconds for window in windows))
        found = [heard(window.samples, SAMPLE_RATE) for window in windows]
        return [Transcription("" if number is None else f"This is {name(number)}.") for number in found]

    def detect(batch: Sequence[VadInput]) -> list[VadOutput]:
        time.sleep(times.vad)
        return [VadOutput(_sound(work.frames), work.state) for work in batch]

    asr: Measured[Window] = Measured(max_batch=times.batch, fifo=fifo)
    vad: Measured[VadInput] = Measured(max_batch=64)
    tts: Measured[str] = Measured(fifo=fifo)
    english: Worker[Window, Transcription] = Worker("asr", transcribe, scheduler=asr)
    detector: Worker[VadInput, VadOutput] = Worker("vad", detect, scheduler=vad)
    voice = SimulatedVoice(times, tts)

    async def multilingual() -> Worker[Window, Transcription]:
        return english

    try:
        chat = SimulatedChat(times)
        yield Engines(english, multilingual, lambda window: 0, detector, chat, voice), [asr, vad, tts]
    finally:
        for worker in (english, detector, voice):
            await worker.aclose()


def _sound(frames: Samples) -> Samples:
    return (np.sqrt(np.mean(np.square(frames), axis=1)) > QUIET).astype(np.float32)
