"""Cases 28 to 38, 50 and 52: many sessions, idle ones, broken ones (docs/cases.md says where each is held)."""

import asyncio
import random
import threading
from asyncio import events
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest
from fakes import FakeChat, FakeRecognizer, fake_engines, hear, loudness, tone
from test_session import RATE as HEARD_RATE
from test_session import SPEECH, OneSlot, of, silence, talking
from test_websocket import QUESTION, RATE, client, settings, until_sessions

from antiphon.asr.base import Transcription, Window
from antiphon.asr.vad import VadState
from antiphon.llm.base import ChatRequest, Delta
from antiphon.pipeline.engines import VadInput, VadOutput
from antiphon.pipeline.events import (
    CancelResponse,
    CommitAudio,
    CreateResponse,
    OutputAudio,
    ResponseDone,
    SessionConfig,
    TranscriptionDone,
    TurnStarted,
)
from antiphon.pipeline.worker import Worker
from antiphon.transport.server import running


@pytest.mark.server
async def test_case_28_an_idle_session_wakes_nobody(monkeypatch: pytest.MonkeyPatch):
    """As many callbacks of the event loop beside thirty idle clients as beside none."""
    ran: Counter[str] = Counter()
    run = events.Handle._run

    def counted(self: events.Handle) -> None:
        ran[str(self._callback)[:80]] += 1
        run(self)

    async def callbacks() -> int:
        ran.clear()
        await asyncio.sleep(1.0)
        return ran.total()

    async with (
        running(settings("server.max_sessions=64"), engines=fake_engines()) as url,
        asyncio.TaskGroup() as group,
    ):
        monkeypatch.setattr(events.Handle, "_run", counted)
        alone = await callbacks()
        leave = asyncio.Event()
        came = 0

        async def idle() -> None:
            nonlocal came
            async with client(url, ping_interval=None) as me:
                await me.append(QUESTION)
                await me.until("response.done")
                came += 1
                await leave.wait()

        for _ in range(30):
            group.create_task(idle())
        while came < 30:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.5)  # what a turn leaves behind has ended
        beside = await callbacks()
        busiest = ran.most_common(3)
        monkeypatch.undo()
        leave.set()
    assert beside <= alone + 30, busiest


@pytest.mark.server
async def test_case_32_a_hundred_sessions_leave_no_task_and_no_client_behind():
    """A third of them are cut without a close, in the middle of a turn or of a reply."""
    chat = FakeChat("One two three four five. " * 20)
    rng = random.Random(1)
    async with running(settings("server.max_sessions=64"), engines=fake_engines(chat=chat)) as url:
        async with client(url) as me:
            await me.write()
        await until_sessions(url, 0)
        before = {task.get_name().rpartition("-")[0] for task in asyncio.all_tasks()}

        async def one(number: int) -> None:
            async with client(url, ping_interval=None) as me:
                await me.append(QUESTION[: rng.choice([RATE // 4, RATE, len(QUESTION)])])
                await me.next()
                if number % 3 == 0:
                    me.socket.transport.abort()

        for first in range(0, 100, 10):
            async with asyncio.TaskGroup() as group:
                for number in range(first, first + 10):
                    group.create_task(one(number))
        await until_sessions(url, 0)
        await asyncio.sleep(0.1)
        after = {task.get_name().rpartition("-")[0] for task in asyncio.all_tasks()}
        assert not {name for name in after - before if name.startswith("sess")}
        assert chat.active == 0


async def test_case_35_a_cancelled_response_leaves_its_engine_and_not_the_transcription():
    chat = OneSlot("One two three four. " * 50)
    async with talking(chat=chat, config=SessionConfig(language="en", turn=None)) as talk:
        await talk.hear(SPEECH)
        await talk.do(CommitAudio())
        await talk.do(CreateResponse())
        await talk.do(CancelResponse())
        seen = await talk.until(ResponseDone)
        assert seen[-1].response.status == "cancelled"
        while not of(talk.outputs, TranscriptionDone):
            await talk.until(TranscriptionDone)
        async with asyncio.timeout(5):
            while chat.active:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await talk.do(CreateResponse(modality="text"))
        assert (await talk.until(ResponseDone))[-1].response.status == "completed"


def canary(number: int) -> str:
    return f"canary number {number} sings"


def pitch(number: int) -> float:
    return 200.0 + 40.0 * number


class ByPitch(FakeRecognizer):
    """Hears the canary whose note it is."""

    def transcribe(self, windows: Sequence[Window]) -> Sequence[Transcription]:
        return [Transcription(self._name(w.samples) if loudness(w.samples) > 0.01 else "") for w in windows]

    def _name(self, samples: np.ndarray) -> str:
        spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
        hz = float(np.argmax(spectrum)) * HEARD_RATE / len(samples)
        return canary(round((hz - 200.0) / 40.0))


def answer(number: int, turns: int) -> str:
    """In other words than the canary's: these would be taken for an echo."""
    return " ".join([f"heard bird {number}"] * turns)


class Listener(FakeChat):
    """Names the bird of every message of the user's."""

    async def _deltas(self, request: ChatRequest) -> AsyncIterator[Delta]:
        sung = [m.content for m in request.messages if m.role == "user"]
        self.replies = [" ".join(answer(int(text.split()[2]), 1) for text in sung) or "Nothing."]
        async for delta in super()._deltas(request):
            yield delta


@pytest.mark.server
async def test_case_36_no_word_of_a_session_is_met_in_another():
    """Twelve at a time, three turns each, some cut off and come back: every word that one hears or is told is
    its own canary's. So it is after a reconnection (case 52): the new session knows nothing of the old."""
    engines = fake_engines(ByPitch(), Listener())

    async def sing(url: str, number: int) -> None:
        sound = np.concatenate([tone(0.8, RATE, hz=pitch(number)), np.zeros(RATE, np.float32)])
        for visit in range(2):
            async with client(url) as me:
                assert (await me.next())["type"] == "session.created"
                for turn in range(3):
                    await me.append(sound)
                    seen = await me.until("response.done")
                    text = seen[-1]["response"]["output"][0]["content"][0]["transcript"]
                    assert text == answer(number, turn + 1)
                    heard = [e["transcript"] for e in seen if e["type"].endswith("transcription.completed")]
                    assert heard == [canary(number)]
                    own = {e["response_id"] for e in seen if "response_id" in e}
                    assert own == {seen[-1]["response"]["id"]}
                if visit == 0 and number % 3 == 0:
                    await me.append(sound)
                    me.socket.transport.abort()

    async with (
        running(settings("output.lead=10", "server.max_sessions=64"), engines=engines) as url,
        asyncio.TaskGroup() as group,
    ):
        for number in range(12):
            group.create_task(sing(url, number))


async def test_case_50_a_session_outlives_silence_and_hold():
    """Two minutes of silence (case 27), then nothing at all, then speech: no turn, no end, and then a reply."""
    async with talking() as talk:
        await talk.hear(silence(120.0), piece=1.0)
        await asyncio.sleep(1.5)
        await talk.hear(silence(0.3), SPEECH, silence(0.8))
        seen = await talk.until(ResponseDone)
        assert len(of(seen, TurnStarted)) == 1
        assert of(seen, OutputAudio)


async def test_case_37_the_detector_has_one_thread_and_its_own():
    """The recogniser and the detector never wait for each other, nor for anybody's default threads."""
    names: dict[str, set[str]] = {"asr": set(), "vad": set()}

    class Named(FakeRecognizer):
        def transcribe(self, windows: Sequence[Window]) -> Sequence[Transcription]:
            names["asr"].add(threading.current_thread().name)
            return super().transcribe(windows)

    def listen(batch: Sequence[VadInput]) -> list[VadOutput]:
        names["vad"].add(threading.current_thread().name)
        return hear(batch)

    vad: Worker[VadInput, VadOutput] = Worker("vad", listen)
    async with fake_engines(Named()) as engines:
        now = asyncio.get_running_loop().time()
        window = Window(SPEECH, "", "en", True)
        for _ in range(5):
            await engines.english.submit(window, owner="me", deadline=now)
            await vad.submit(VadInput(SPEECH[:512][None], VadState()), owner="me", deadline=now)
        await vad.aclose()
    assert {name.rpartition("_")[0] for name in names["vad"]} == {"antiphon-vad"}
    assert len(names["vad"]) == 1
    assert {name.rpartition("_")[0] for name in names["asr"]} == {"antiphon-asr"}
