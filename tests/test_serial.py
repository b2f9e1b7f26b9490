"""The chain that `bench latency --serial` compares with: one step after the other, each timed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from antiphon.asr.base import SAMPLE_RATE
from antiphon.asr.formats import decode_file
from antiphon.benchmarks import serial
from antiphon.llm.base import ChatRequest, Delta
from antiphon.pipeline.engines import Engines, VadInput, VadOutput
from antiphon.pipeline.events import Samples
from antiphon.pipeline.settings import Settings, TurnSettings

DATA = Path(__file__).parent / "data"
SETTINGS = Settings(turn=TurnSettings(silence=0.2))


class Loudness:
    """A detector's worker that takes every loud frame for speech."""

    async def submit(self, payload: VadInput, **_: object) -> VadOutput:
        loud = np.abs(payload.frames).max(axis=1) > 0.01
        return VadOutput(loud.astype(np.float32), payload.state)


@dataclass
class Writer:
    """A language model that writes these pieces, and says how many were taken."""

    pieces: Sequence[str]
    taken: int = 0
    requests: list[ChatRequest] = field(default_factory=list[ChatRequest])

    @asynccontextmanager
    async def stream(self, request: ChatRequest) -> AsyncGenerator[AsyncIterator[Delta], None]:
        self.requests.append(request)
        yield self._write()

    async def _write(self) -> AsyncGenerator[Delta, None]:
        for piece in self.pieces:
            self.taken += 1
            yield Delta(piece)
        yield Delta("", "stop")


def engines(chat: Writer | None = None) -> Engines:
    unused: Any = None
    return Engines(
        english=unused,
        multilingual=unused,
        bucket=unused,
        vad=cast(Any, Loudness()),
        chat=chat or Writer(()),
        voice=unused,
    )


def noise(seconds: float) -> Samples:
    return np.random.default_rng(0).normal(0, 0.1, round(seconds * SAMPLE_RATE)).astype(np.float32)


def silence(seconds: float) -> Samples:
    return np.zeros(round(seconds * SAMPLE_RATE), np.float32)


def speech_of(*seconds: float) -> Samples:
    """Stretches of noise with 0.5 s of silence before each and after the last."""
    parts = [part for length in seconds for part in (silence(0.5), noise(length))]
    return np.concatenate([*parts, silence(0.5)])


async def test_one_step_begins_when_the_one_before_it_is_done() -> None:
    windows: list[float] = []
    spoken: list[str] = []

    def transcribe(samples: Samples) -> str:
        windows.append(len(samples) / SAMPLE_RATE)
        return " Who is there? "

    def speak(text: str) -> Samples:
        spoken.append(text)
        return np.concatenate([np.zeros(7200, np.float32), np.full(2400, 0.5, np.float32)])

    chat = Writer(("It", " is", " me.", " Who", " are", " you", "?"))
    chain = serial.SerialChain(SETTINGS, engines(chat), transcribe=transcribe, speak=speak)
    said = await chain.answer(speech_of(0.5), limit=5)
    assert said.problem is None
    assert (said.transcript, said.reply, said.false_ends) == ("Who is there?", "It is me.", 0)
    assert spoken == ["It is me."]
    assert chat.taken == 4, "the sentence is known to be complete when white space follows"
    assert [m.content for m in chat.requests[0].messages][1:] == ["Who is there?"]
    assert 0.7 < windows[0] < 1.3, "the words, some pre-roll, and the silence that was waited for"
    at = said.stages_ms
    order = [
        at["gate_open"],
        at["transcript_final"],
        at["first_token"],
        at["first_clause"],
        at["first_audio"],
    ]
    assert order == sorted(cast(list[float], order))
    assert cast(float, at["gate_open"]) >= 200 - 20
    assert said.v2v_ms == pytest.approx(cast(float, at["first_audio"]) + 300, abs=5), "0.3 s silent head"


async def test_a_pause_longer_than_the_silence_ends_the_turn_too_early() -> None:
    words = iter(("second", "first"))
    chain = serial.SerialChain(
        SETTINGS, engines(Writer(("Yes.",))), transcribe=lambda _: next(words), speak=lambda _: noise(0.1)
    )
    said = await chain.answer(speech_of(0.4, 0.7), limit=5)
    assert (said.false_ends, said.transcript, said.reply) == (1, "first second", "Yes.")


async def test_what_is_missing_is_named() -> None:
    def chain(text: str) -> serial.SerialChain:
        return serial.SerialChain(
            SETTINGS, engines(), transcribe=lambda _: text, speak=lambda _: silence(0.1)
        )

    said = await asyncio.gather(
        chain("").answer(silence(0.3), limit=1),
        chain("").answer(speech_of(0.4), limit=1),
        chain("hm").answer(speech_of(0.4), limit=1),
        chain("hm").answer(speech_of(0.02), limit=0.1),
    )
    assert [s.problem for s in said] == [
        "the recording holds no speech",
        "no words were recognised",
        "no reply",
        "no end of speech was found in time",
    ]


@pytest.mark.model
@pytest.mark.slow
async def test_the_real_chain_hears_and_answers() -> None:
    pytest.importorskip("faster_whisper")
    from antiphon.pipeline.weights import WeightStore
    from antiphon.transport.engines import load_engines

    settings = Settings()
    samples = await asyncio.to_thread(decode_file, DATA / "question.wav", SAMPLE_RATE)
    store = WeightStore(settings.weights.root)
    folder = await asyncio.to_thread(store.fetch, settings.asr.model)
    async with load_engines(settings) as loaded:
        chain = await asyncio.to_thread(serial.load, settings, loaded, folder)
        said = await chain.answer(samples, limit=60)
    assert said.problem is None
    assert said.reply
    assert "something rather unusual" in said.transcript.lower()
    assert said.v2v_ms is not None
    assert None not in said.stages_ms.values()
