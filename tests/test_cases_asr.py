"""Cases 25 to 30: what is recognised, and when nothing is (docs/cases.md says where each is held)."""

import asyncio
import threading
import time
from collections.abc import Sequence

import httpx
import numpy as np
import pytest
from conftest import DATA
from fakes import FakeChat, FakeRecognizer, tone
from test_session import RATE, of, silence, talking
from test_websocket import client

from antiphon.asr.base import Transcription, Window
from antiphon.asr.formats import decode_file
from antiphon.pipeline.audio import pcm16_to_samples
from antiphon.pipeline.events import ResponseDone, TranscriptionDone
from antiphon.pipeline.settings import load
from antiphon.transport.server import running

WIRE_RATE = 24_000


class Gated(FakeRecognizer):
    """Decodes when `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def transcribe(self, windows: Sequence[Window]) -> Sequence[Transcription]:
        self.go.wait(10)
        return super().transcribe(windows)


async def test_case_26_a_partial_that_waits_is_not_decoded_beside_the_end():
    """Its words would be of no use to anybody, and whoever is next would wait for them."""
    recognizer = Gated()
    async with talking(recognizer=recognizer, settings=["asr.partial_interval=1"]) as talk:
        worker = talk.session._engines.english
        other = asyncio.create_task(
            worker.submit(Window(tone(1.0, RATE), "", "en", True), owner="somebody", deadline=0.0)
        )
        await talk.hear(silence(0.3), tone(1.55, RATE))
        assert len(worker) == 1, "a partial waits"
        await talk.hear(silence(0.2))
        assert len(worker) == 1, "the final in its place"
        recognizer.go.set()
        await talk.hear(silence(0.6))
        await talk.until(ResponseDone)
        await other
    assert [window.final for window in recognizer.windows] == [True, True]


class Slow(FakeRecognizer):
    """Takes longer for a window than the sound in it lasts, as it comes in here."""

    def transcribe(self, windows: Sequence[Window]) -> Sequence[Transcription]:
        time.sleep(0.1)
        return super().transcribe(windows)


async def test_case_26_a_recogniser_that_is_too_slow_lags_by_a_window_and_no_more():
    """Audio comes in twenty times as fast as time: the partials thin out, and the end waits for one at most."""
    recognizer = Slow()
    async with talking(recognizer=recognizer, chat=FakeChat("Yes.")) as talk:
        for _ in range(3):
            before = len(recognizer.windows)
            await talk.hear(silence(0.3), tone(15.0, RATE), silence(0.8))
            assert len(recognizer.windows) - before <= 15, "not one for every interval"
            assert of(await talk.until(ResponseDone), TranscriptionDone)
            assert len(talk.session._engines.english) == 0, "nothing is left to decode"


CLIPS = {"nerves.flac": "how", "silly.flac": "you", "question.wav": "do"}
"""Recordings that begin with their first word, and that word."""


@pytest.mark.server
@pytest.mark.model
@pytest.mark.slow
async def test_case_29_each_utterance_has_its_own_words_and_silence_has_none():
    """Three utterances, two minutes of silence (case 27), and the same again: each is transcribed as before,
    its first word too (case 23), and a "yes" of a third of a second is a turn (case 21)."""
    quiet = np.zeros(WIRE_RATE, np.float32)
    transcripts: dict[str, list[str]] = {}
    async with running(load(overrides=["llm.max_tokens=8"])) as url, client(url, max_queue=None) as me:

        async def say(samples: np.ndarray) -> str:
            sound = np.concatenate([samples, quiet, quiet])
            for at in range(0, len(sound), WIRE_RATE // 10):
                await me.append(sound[at : at + WIRE_RATE // 10])
            seen = await me.until("response.done")
            (heard,) = [e["transcript"] for e in seen if e["type"].endswith("transcription.completed")]
            return heard

        for visit in range(2):
            for name in CLIPS:
                transcripts.setdefault(name, []).append(await say(decode_file(DATA / name, WIRE_RATE)))
            for _ in range(120 if visit == 0 else 1):
                await me.append(quiet)
        async with httpx.AsyncClient(base_url=url.replace("ws", "http", 1), timeout=60) as http:
            body = {
                "model": "tts-1",
                "voice": "alloy",
                "input": "Yes.",
                "response_format": "pcm",
                "speed": 1.5,
            }
            spoken = pcm16_to_samples((await http.post("/v1/audio/speech", json=body)).content)
        loud = np.flatnonzero(np.abs(spoken) > 0.02)
        yes = spoken[loud[0] : loud[-1]]
        assert len(yes) < 0.45 * WIRE_RATE
        assert "yes" in (await say(np.concatenate([quiet, yes]))).lower()
    for name, (first, second) in transcripts.items():
        assert first == second, name
        assert first.lower().split()[0].strip(",.") == CLIPS[name]
