"""Cases 16 to 24: double, lost, premature and clipped turns (docs/cases.md says where each is held)."""

import asyncio
import threading
from collections.abc import Sequence

import numpy as np
import pytest
from fakes import FakeChat, FakeRecognizer, FakeVoice, loudness, tone
from test_session import RATE, SPEECH, Hears, Talk, of, silence, talking
from walks import walk

from antiphon.asr.base import Transcription, Window
from antiphon.pipeline import session as sessions
from antiphon.pipeline.events import (
    AudioCommitted,
    OutputAudio,
    Patience,
    ResponseDone,
    ResponseStarted,
    TranscriptionDone,
    TurnEndProbability,
    TurnPolicy,
    TurnStarted,
)

LONG = "It is noon and the sun stands high over the city. " * 8


@pytest.mark.parametrize("pauses", [(0.1,), (0.2, 0.3), (0.1, 0.2, 0.3, 0.4)])
async def test_case_16_one_reply_to_an_utterance_that_the_detector_splits(pauses: tuple[float, ...]):
    pieces = [part for pause in pauses for part in (SPEECH[:8000], silence(pause))]
    chat = FakeChat()
    async with talking(chat=chat) as talk:
        await talk.hear(silence(0.3), *pieces, SPEECH[:8000], silence(0.8))
        seen = await talk.until(ResponseDone)
        await talk.hear(silence(1.0))
        assert len(of(seen, TurnStarted)) == len(of(seen, AudioCommitted)) == 1
        assert len(of(seen, ResponseStarted)) == len(of(seen, TranscriptionDone)) == 1
        assert len(talk.session.conversation) == 2
        assert chat.active == 0


@pytest.mark.parametrize("seed", range(24))
async def test_case_17_a_later_utterance_is_answered_after_any_interleaving(seed: int):
    await walk(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(2000, 2200, 25))
async def test_case_17_two_hundred_walks(first: int):
    for seed in range(first, first + 25):
        await walk(seed, steps=60)


async def test_case_18_a_discarded_speculation_leaves_the_engine_and_is_counted():
    chat = FakeChat()
    chat.hold.clear()
    async with talking(chat=chat) as talk:
        await talk.hear(silence(0.3), SPEECH, silence(0.2))
        await chat.asked.wait()
        assert chat.active == 1
        await talk.hear(SPEECH)
        assert chat.active == 0, "before the user has said another word"
        chat.hold.set()
        await talk.hear(silence(0.8))
        await talk.until(ResponseDone)
        (trace,) = talk.traces
        assert (trace.launched, trace.used, trace.discarded) == (2, 1, 1)
        assert trace.wasted_ms > 0


class Loudness:
    """The loudest sample of each piece of the reply, as it comes."""

    def __init__(self, talk: Talk) -> None:
        self.pieces: list[float] = []
        self._talk = talk
        self._task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        while True:
            piece = of(await self._talk.until(OutputAudio), OutputAudio)[-1]
            self.pieces.append(float(np.abs(piece.samples[-500:]).max()))

    async def next(self) -> float:
        """Of what is sent from here on."""
        before = len(self.pieces)
        while len(self.pieces) < before + 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return self.pieces[-1]

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@pytest.mark.parametrize("cough", [0.13, 0.2, 0.3])
@pytest.mark.parametrize("muted", [False, True])
async def test_case_19_after_a_cough_the_reply_goes_on_as_loud_as_before(
    cough: float, muted: bool, monkeypatch: pytest.MonkeyPatch
):
    """Also when the microphone is muted in the middle of it, and nothing says any more that it is over."""
    monkeypatch.setattr(sessions, "MUTED", 0.1)
    chat = FakeChat(LONG, "Yes?")
    async with talking(recognizer=Hears(""), chat=chat, settings=["output.lead=0.2"]) as talk:
        await talk.hear(silence(0.3), SPEECH, silence(0.7))
        loudness = Loudness(talk)
        loud = await loudness.next()
        await talk.hear(tone(cough, RATE))
        if not muted:
            await talk.hear(silence(0.5))
        await asyncio.sleep(0.4)
        assert await loudness.next() == pytest.approx(loud)
        await loudness.end()
        assert talk.session._machine.floor is sessions.Floor.IDLE
        assert not of(talk.outputs, TurnStarted)[1:]
        assert not of(talk.outputs, ResponseDone)


async def test_case_20_a_reply_needs_nobody_to_speak():
    """No audio comes in any more, and the reply is whole."""
    voice = FakeVoice()
    async with talking(chat=FakeChat(LONG[:50]), voice=voice, settings=["output.lead=0.2"]) as talk:
        await talk.hear(silence(0.3), SPEECH, silence(0.7))
        seen = await talk.until(ResponseDone)
    assert seen[-1].response.status == "completed"
    produced = sum(round(0.05 * len(clause) * voice.sample_rate) for clause in voice.spoken)
    assert sum(len(o.samples) for o in of(seen, OutputAudio)) == produced


async def test_case_21_a_quarter_of_a_second_is_answered():
    async with talking(recognizer=FakeRecognizer("Yes.")) as talk:
        await talk.hear(silence(0.5), tone(0.25, RATE), silence(0.8))
        assert (await talk.until(ResponseDone))[-1].response.status == "completed"


async def test_case_22_the_gate_stays_shut_while_the_user_may_be_going_on():
    """The news that the turn is surely over comes when its next word has begun, but is not yet sure."""
    policy = TurnPolicy(silence=5.0)
    async with talking(config=sessions.SessionConfig(language="en", turn=policy)) as talk:
        machine, detector = talk.session._machine, talk.session._detector
        await talk.hear(silence(0.3), SPEECH, silence(0.4))
        await asyncio.sleep(0.05)
        machine.policy = TurnPolicy(silence=5.0, patience=Patience())
        await talk.hear(tone(0.04, RATE))
        await asyncio.sleep(0.02)
        assert detector.pending
        talk.session._happen(TurnEndProbability(machine.revision, 1.0, sound=detector.pending))
        assert machine.floor is sessions.Floor.PAUSED
        await talk.hear(silence(0.2))
        assert of(await talk.until(ResponseDone), ResponseDone)


class Held(FakeRecognizer):
    """Hears a hum over the reply, and says so when `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.finals = 0

    def transcribe(self, windows: Sequence[Window]) -> Sequence[Transcription]:
        self.finals += windows[0].final
        if self.finals == 2 and windows[0].final:
            self.go.wait(10)
            self.windows += windows
            return [Transcription("Mm-hm.")]
        return super().transcribe(windows)


async def test_case_23_a_word_that_begins_while_a_hum_is_made_out_is_whole():
    recognizer = Held()
    chat = FakeChat(LONG, "Yes?")
    # No partials: they would wait behind the hum.
    settings = ["output.lead=0.3", "asr.partial_interval=10"]
    async with talking(recognizer=recognizer, chat=chat, settings=settings) as talk:
        await talk.hear(silence(0.3), SPEECH, silence(0.7))
        await talk.until(OutputAudio)
        await talk.hear(tone(0.3, RATE), silence(0.3), tone(0.05, RATE))
        assert talk.session._detector.pending
        recognizer.go.set()
        while talk.session._machine.doubt:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await talk.hear(tone(0.95, RATE), silence(0.3))
        await talk.until(TurnStarted)
        while recognizer.finals < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    window = recognizer.windows[-1].samples
    voiced = np.count_nonzero(np.abs(window) > 0.01)
    assert voiced == pytest.approx(np.count_nonzero(np.abs(tone(1.0, RATE)) > 0.01), abs=50)
    assert loudness(window[: round(0.2 * RATE)]) < 0.01, "and what was before it"
