"""Small real engines: they keep the models' protocols, answer at once, and say what was asked of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np

from antiphon.asr.base import Transcription, Window
from antiphon.llm.base import ChatModel, ChatRequest, Delta
from antiphon.pipeline.engines import Engines, VadInput, VadOutput
from antiphon.pipeline.events import Samples, Usage
from antiphon.pipeline.worker import Worker
from antiphon.tts.base import Synthesizer, Voice

QUIET = 0.01
"""Root mean square below which the fakes hear nothing."""


def loudness(samples: Samples) -> float:
    return float(np.sqrt(np.mean(np.square(samples, dtype=np.float64)))) if len(samples) else 0.0


def tone(seconds: float, rate: int, *, hz: float = 220.0, level: float = 0.3) -> Samples:
    """A sine, shape (seconds * rate,)."""
    return (level * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


class FakeRecognizer:
    """Hears `text` in any window with sound in it, and nothing in silence. `windows`: all it was given."""

    def __init__(self, text: str = "what time is it") -> None:
        self.text = text
        self.windows: list[Window] = []

    def transcribe(self, windows: Sequence[Window]) -> Sequence[Transcription]:
        self.windows += windows
        return [Transcription(self.text if loudness(w.samples) > QUIET else "") for w in windows]


class FakeChat:
    """Streams its replies in turn, the last one for ever, a word a delta.

    requests: all it was given, prefills aside. active: streams open now. hold: while it is not set, a stream
    waits before its second delta.
    """

    def __init__(self, *replies: str) -> None:
        self.replies = list(replies) or ["It is noon. Time for lunch."]
        self.requests: list[ChatRequest] = []
        self.active = 0
        self.asked = asyncio.Event()
        self.hold = asyncio.Event()
        self.hold.set()

    @asynccontextmanager
    async def stream(self, request: ChatRequest) -> AsyncIterator[AsyncIterator[Delta]]:
        self.active += 1
        try:
            yield self._deltas(request)
        finally:
            self.active -= 1

    async def _deltas(self, request: ChatRequest) -> AsyncIterator[Delta]:
        if request.limits.max_tokens == 0:
            return
        self.requests.append(request)
        self.asked.set()
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        words = reply.split(" ")
        for number, word in enumerate(words):
            if number == 1:
                await self.hold.wait()
            await asyncio.sleep(0)
            yield Delta(word if number == 0 else " " + word)
        yield Delta("", "stop", Usage(input_tokens=10, output_tokens=len(words)))


class FakeVoice:
    """Speaks a tone, 0.05 s a letter, in chunks of 0.1 s. `spoken`: the clauses it was given."""

    sample_rate = 24_000
    voices = ("heart", "alto")

    def __init__(self) -> None:
        self.spoken: list[str] = []

    @asynccontextmanager
    async def synthesize(
        self, text: str, voice: Voice, *, owner: str, deadline: float
    ) -> AsyncIterator[AsyncIterator[Samples]]:
        self.spoken.append(text)
        yield self._chunks(tone(0.05 * len(text) / voice.speed, self.sample_rate))

    async def _chunks(self, samples: Samples) -> AsyncIterator[Samples]:
        size = self.sample_rate // 10
        for at in range(0, len(samples), size):
            await asyncio.sleep(0)
            yield samples[at : at + size]


def hear(batch: Sequence[VadInput]) -> list[VadOutput]:
    """A detector for which sound is speech."""
    return [
        VadOutput(np.array([loudness(f) > QUIET for f in work.frames], np.float32), work.state)
        for work in batch
    ]


@asynccontextmanager
async def fake_engines(
    recognizer: FakeRecognizer | None = None, chat: ChatModel | None = None, voice: Synthesizer | None = None
) -> AsyncIterator[Engines]:
    """A server's engines, all fakes where none is given."""
    english: Worker[Window, Transcription] = Worker("asr", (recognizer or FakeRecognizer()).transcribe)
    vad: Worker[VadInput, VadOutput] = Worker("vad", hear)

    async def multilingual() -> Worker[Window, Transcription]:
        return english

    try:
        yield Engines(english, multilingual, lambda window: 0, vad, chat or FakeChat(), voice or FakeVoice())
    finally:
        await english.aclose()
        await vad.aclose()
