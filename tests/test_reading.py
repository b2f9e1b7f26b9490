"""The shell that reads a file: what overlaps, what is bounded, and who goes first."""

import asyncio
import io
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest
from fakes import FakeChat, FakeVoice, hear
from recordings import Listener, spoken, texts, wav

from antiphon.asr.base import SAMPLE_RATE, Reading, Transcription, Window
from antiphon.asr.reading import PATIENCE, Recording, Task, read
from antiphon.asr.recording import Passage
from antiphon.pipeline.engines import Engines, VadInput, VadOutput
from antiphon.pipeline.errors import BadRequest, EngineFailed
from antiphon.pipeline.worker import Worker

STARTS = [0.4 + 1.1 * n for n in range(100)]
LONG = wav(spoken(STARTS, 115.0))


class Held(Listener):
    """A recogniser that waits, on its thread, until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.asked = threading.Event()

    def transcribe(self, windows: Sequence[Window]) -> Sequence[Transcription]:
        self.asked.set()
        self.go.wait(20)
        return super().transcribe(windows)


@asynccontextmanager
async def engines(listener: Listener) -> AsyncIterator[Engines]:
    asr: Worker[Window, Transcription] = Worker("asr", listener.transcribe)
    vad: Worker[VadInput, VadOutput] = Worker("vad", hear)

    async def multilingual() -> Worker[Window, Transcription]:
        return asr

    try:
        yield Engines(asr, multilingual, lambda window: 0, vad, FakeChat(), FakeVoice())
    finally:
        await asr.aclose()
        await vad.aclose()


async def everything(recording: Recording) -> list[Passage]:
    return [passage async for passage in recording.passages()]


async def test_a_long_file_is_read_whole() -> None:
    listener = Listener()
    async with (
        engines(listener) as them,
        read(them, them.english, io.BytesIO(LONG), Task("one")) as recording,
    ):
        passages = await everything(recording)
    assert "".join(p.lead + p.text for p in passages) == texts(range(100))
    assert max(abs(p.start - s) for p, s in zip(passages, STARTS, strict=True)) < 0.05
    assert (recording.seconds, recording.language) == (115.0, "de")
    # What was detected first holds for the whole file.
    assert [window.language for window in listener.windows] == [None] + ["de"] * (len(listener.windows) - 1)
    assert all(window.final and window.reading == Reading() for window in listener.windows)


async def test_words_come_before_the_file_is_decoded() -> None:
    sound = wav(spoken([0.4 + 1.1 * n for n in range(230)], 1800.0))
    async with (
        engines(Listener()) as them,
        read(them, them.english, io.BytesIO(sound), Task("one")) as recording,
    ):
        passages = recording.passages()
        first = await anext(passages)
        assert first.text == "w0"
        assert recording.seconds < 600
        await passages.aclose()


async def test_what_waits_for_the_recogniser_is_bounded() -> None:
    listener = Held()
    sound = wav(spoken([0.4 + 1.1 * n for n in range(230)], 255.0))
    async with (
        engines(listener) as them,
        read(them, them.english, io.BytesIO(sound), Task("one")) as recording,
    ):
        reading = asyncio.create_task(everything(recording))
        await asyncio.to_thread(listener.asked.wait, 20)
        while not recording._chunks.full():  # noqa: ASYNC110
            await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0)
        assert recording.seconds < 160
        listener.go.set()
        assert len(await reading) == 230


async def test_a16_leaving_frees_the_queue_at_once() -> None:
    listener = Held()
    async with engines(listener) as them:
        async with read(them, them.english, io.BytesIO(LONG), Task("one")) as recording:
            reading = asyncio.create_task(everything(recording))
            await asyncio.to_thread(listener.asked.wait, 20)
            waiting = asyncio.create_task(
                them.english.submit(Window(np.zeros(100, np.float32)), owner="two", deadline=0.0)
            )
            await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait([reading])
        assert len(them.english) == 1  # the other's work
        listener.go.set()
        await waiting
    assert len(listener.windows) == 2


async def test_conversations_go_first() -> None:
    listener = Held()
    async with engines(listener) as them:
        now = asyncio.get_running_loop().time()
        turn = Window(np.full(1000, 0.5, np.float32))
        async with read(them, them.english, io.BytesIO(LONG), Task("file")) as recording:
            reading = asyncio.create_task(everything(recording))
            await asyncio.to_thread(listener.asked.wait, 20)
            others = [Window(np.zeros(100 + n, np.float32), reading=Reading()) for n in range(3)]
            jobs = [
                asyncio.create_task(them.english.submit(w, owner="f", deadline=now + PATIENCE))
                for w in others
            ]
            await asyncio.sleep(0)
            spoken_to = asyncio.create_task(them.english.submit(turn, owner="turn", deadline=now + 1.0))
            await asyncio.sleep(0)
            listener.go.set()
            await asyncio.gather(spoken_to, *jobs, reading)
    assert listener.windows[1] is turn


async def refused(file: bytes, task: Task) -> BadRequest:
    async with engines(Listener()) as them, read(them, them.english, io.BytesIO(file), task) as recording:
        with pytest.raises(BadRequest) as caught:
            await everything(recording)
    return caught.value


async def test_what_is_no_recording_and_what_is_too_long() -> None:
    error = await refused(b"<html>", Task("one"))
    assert (error.status, error.param) == (400, "file")
    error = await refused(LONG, Task("one", max_seconds=60.0))
    assert (error.status, error.param, error.code) == (400, "file", "audio_too_long")


async def test_a_recogniser_that_fails_is_ours_to_answer_for() -> None:
    class Broken(Listener):
        def transcribe(self, windows: Sequence[Window]) -> Sequence[Transcription]:
            raise ValueError("private")

    async with (
        engines(Broken()) as them,
        read(them, them.english, io.BytesIO(LONG), Task("one")) as recording,
    ):
        with pytest.raises(EngineFailed) as caught:
            await everything(recording)
    assert "private" not in caught.value.message


async def test_silence_is_never_read() -> None:
    listener = Listener()
    silence = wav(np.zeros(60 * SAMPLE_RATE, np.float32))
    async with (
        engines(listener) as them,
        read(them, them.english, io.BytesIO(silence), Task("one")) as recording,
    ):
        assert await everything(recording) == []
        assert (recording.seconds, recording.language) == (60.0, None)
    assert listener.windows == []
