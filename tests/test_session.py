"""A session around fake engines: speculation, resumption, barge-in, failures, and an end that leaves nothing."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import numpy as np
import pytest
from fakes import FakeChat, FakeRecognizer, FakeVoice, fake_engines, tone

from antiphon.asr.base import Transcription, Window
from antiphon.llm.base import ChatRequest, Delta, Message
from antiphon.pipeline import session
from antiphon.pipeline.errors import BadRequest, EngineFailed, Overloaded
from antiphon.pipeline.events import (
    AppendAudio,
    CancelResponse,
    Command,
    CommitAudio,
    Configure,
    CreateItem,
    CreateResponse,
    DeleteItem,
    Failed,
    Item,
    ItemTruncated,
    Output,
    OutputAudio,
    OutputStarted,
    OutputText,
    Part,
    ResponseDone,
    SessionConfig,
    TranscriptionDone,
    TranscriptionFailed,
    TruncateItem,
    TurnPolicy,
    TurnStarted,
)
from antiphon.pipeline.metrics import TurnTrace
from antiphon.pipeline.session import Session
from antiphon.pipeline.settings import load
from antiphon.tts.base import Voice

RATE = 16_000
SPEECH = tone(1.0, RATE)


def silence(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * RATE), np.float32)


class Talk:
    """A running session, and what it said so far."""

    def __init__(self, session: Session, traces: list[TurnTrace]) -> None:
        self.session = session
        self.traces = traces
        self.outputs: list[Output] = []
        self._reader = session.outputs()

    async def hear(self, *sounds: np.ndarray, piece: float = 0.1) -> None:
        """Audio in pieces, letting the engines work between them, as they do in the time audio takes."""
        samples = np.concatenate(sounds)
        for at in range(0, len(samples), round(piece * RATE)):
            await self.do(AppendAudio(samples[at : at + round(piece * RATE)]))
            await asyncio.sleep(0.005)

    async def do(self, command: Command) -> None:
        await self.session.send(command)

    async def until(self, kind: type[Output]) -> list[Output]:  # type: ignore[valid-type]
        seen: list[Output] = []
        async with asyncio.timeout(20):
            while not seen or not isinstance(seen[-1], kind):
                seen.append(await anext(self._reader))
        self.outputs += seen
        return seen


@asynccontextmanager
async def talking(
    *,
    recognizer: FakeRecognizer | None = None,
    chat: FakeChat | None = None,
    voice: FakeVoice | None = None,
    config: SessionConfig | None = None,
    settings: Sequence[str] = (),
) -> AsyncIterator[Talk]:
    numbers = itertools.count(1)
    traces: list[TurnTrace] = []
    async with fake_engines(recognizer, chat, voice) as engines:
        session = Session(
            engines,
            load(overrides=["output.lead=10", *settings], environ={}),
            config=config or SessionConfig(instructions="Be brief.", language="en"),
            new_id=lambda prefix: f"{prefix}_{next(numbers)}",
            record=traces.append,
        )
        running = asyncio.create_task(session.run())
        try:
            yield Talk(session, traces)
        finally:
            await session.aclose()
            await running


def of(outputs: list[Output], kind: type) -> list:
    return [output for output in outputs if isinstance(output, kind)]


async def test_a_spoken_turn_is_answered_by_the_speculation():
    chat = FakeChat()
    async with talking(chat=chat) as talk:
        await talk.hear(silence(0.3), SPEECH, silence(0.7))
        seen = await talk.until(ResponseDone)
    assert [type(output).__name__ for output in seen[:10]] == [
        "TurnStarted",
        "TurnStopped",
        "AudioCommitted",
        "ItemAdded",
        "ItemDone",
        "TranscriptionDelta",
        "TranscriptionDone",
        "ResponseStarted",
        "OutputStarted",
        "OutputText",
    ]
    assert "".join(o.delta for o in of(seen, OutputText)) == "It is noon. Time for lunch."
    assert chat.requests[0].messages == [Message("system", "Be brief."), Message("user", "what time is it")]
    (trace,) = talk.traces
    assert (trace.launched, trace.used, trace.discarded, trace.status) == (1, 1, 0, "completed")
    assert trace.transcript_final is not None
    assert trace.gate_open is not None
    assert trace.first_audio_sent is not None
    assert trace.transcript_final <= trace.gate_open <= trace.first_audio_sent


async def test_produced_and_delivered_audio_are_the_same_samples():
    voice = FakeVoice()
    async with talking(voice=voice) as talk:
        await talk.hear(SPEECH, silence(0.7))
        seen = await talk.until(ResponseDone)
    audio = of(seen, OutputAudio)
    produced = sum(round(0.05 * len(clause) * voice.sample_rate) for clause in voice.spoken)
    assert sum(len(o.samples) for o in audio) == produced
    at = 0
    for output in audio:
        assert output.start == pytest.approx(at / voice.sample_rate)
        at += len(output.samples)


async def test_going_on_cancels_the_speculation_and_answers_once():
    chat = FakeChat()
    async with talking(chat=chat) as talk:
        await talk.hear(SPEECH, silence(0.3), SPEECH, silence(0.7))
        seen = await talk.until(ResponseDone)
        assert len(of(seen, TurnStarted)) == 1
        assert len(of(seen, TranscriptionDone)) == 1
        (trace,) = talk.traces
        assert (trace.launched, trace.used, trace.discarded) == (2, 1, 1)
        assert trace.wasted_ms > 0
        assert chat.active == 0
        assert len(talk.session.conversation) == 2


async def test_serial_order_without_speculation():
    config = SessionConfig(language="en", turn=TurnPolicy(speculate=False))
    chat = FakeChat()
    async with talking(chat=chat, config=config) as talk:
        await talk.hear(SPEECH, silence(0.4))
        assert chat.requests == []
        await talk.hear(silence(0.3))
        await talk.until(ResponseDone)
        (trace,) = talk.traces
        assert (trace.launched, trace.used) == (0, 0)
        assert trace.gate_open is not None
        assert trace.transcript_final is not None
        assert trace.first_token is not None
        assert trace.transcript_final <= trace.first_token


async def test_barge_in_flushes_and_keeps_the_heard_prefix():
    chat = FakeChat("One two three four five six seven eight nine ten. " * 8, "Yes.")
    async with talking(chat=chat, settings=["output.lead=0.2"]) as talk:
        await talk.hear(SPEECH, silence(0.7))
        await talk.until(OutputAudio)
        await asyncio.sleep(0.4)
        await talk.hear(SPEECH)
        seen = await talk.until(ResponseDone)
        kinds = [type(output).__name__ for output in seen]
        assert "OutputAudio" not in kinds[kinds.index("TurnStarted") :]
        response = seen[-1].response
        assert (response.status, response.reason) == ("cancelled", "turn_detected")
        assert response.output[0].status == "incomplete"
        kept = talk.session.conversation.get(response.output[0].id).parts[0].text
        assert kept is not None
        assert chat.replies[0] == "Yes."
        said = "".join(o.delta for o in of(talk.outputs, OutputText))
        assert said.startswith(kept)
        assert len(kept) < len(said)
        await talk.hear(silence(0.7))
        second = await talk.until(ResponseDone)
        assert second[-1].response.status == "completed"
        assert chat.requests[-1].messages[2] == Message("assistant", kept) or not kept


async def test_silence_says_nothing():
    async with talking() as talk:
        await talk.hear(silence(20.0), piece=1.0)
        await talk.do(CreateResponse(modality="text"))
        seen = await talk.until(ResponseDone)
        assert not of(seen, TurnStarted)


async def test_a_manual_turn_waits_for_its_transcript():
    chat = FakeChat()
    async with talking(chat=chat, config=SessionConfig(language="en", turn=None)) as talk:
        await talk.hear(SPEECH)
        await talk.do(CommitAudio())
        await talk.do(CreateResponse())
        seen = await talk.until(ResponseDone)
    assert not of(seen, TurnStarted)
    assert chat.requests[0].messages[-1] == Message("user", "what time is it")


async def test_an_empty_commit_is_refused_and_the_session_goes_on():
    async with talking(config=SessionConfig(language="en", turn=None)) as talk:
        await talk.do(CommitAudio("evt_1"))
        (*_, failed) = await talk.until(Failed)
        assert (failed.error.code, failed.event_id) == ("input_audio_buffer_commit_empty", "evt_1")
        await talk.hear(SPEECH)
        await talk.do(CommitAudio())
        await talk.until(TranscriptionDone)


async def test_the_longest_utterance_is_bounded():
    async with talking(settings=["session.max_utterance_seconds=2"]) as talk:
        await talk.hear(tone(3.0, RATE))
        (*_, done) = await talk.until(TranscriptionDone)
        assert done.duration < 3.0


async def test_overrides_of_one_response_do_not_stay():
    chat = FakeChat()
    async with talking(chat=chat) as talk:
        question = Item("", role="user", parts=(Part("input_text", "Why?"),))
        await talk.do(
            CreateResponse(instructions="Rhyme.", modality="text", input=[question], metadata={"a": "b"})
        )
        (*_, done) = await talk.until(ResponseDone)
        assert done.response.metadata == {"a": "b"}
        assert chat.requests[0].messages == [Message("system", "Rhyme."), Message("user", "Why?")]
        await talk.do(CreateItem(question))
        await talk.do(CreateResponse(modality="text"))
        await talk.until(ResponseDone)
        assert chat.requests[1].messages[0] == Message("system", "Be brief.")


class BrokenChat(FakeChat):
    """Refuses long prompts, and fails on request."""

    def __init__(self, *, longest: int = 1000, error: Exception | None = None) -> None:
        super().__init__()
        self.longest = longest
        self.error = error

    async def _deltas(self, request: ChatRequest) -> AsyncIterator[Delta]:
        if len(request.messages) > self.longest:
            raise BadRequest("too long", code="context_length_exceeded", param="messages")
        if self.error is not None and request.limits.max_tokens != 0:
            raise self.error
        async for delta in super()._deltas(request):
            yield delta


@pytest.mark.parametrize("error", [EngineFailed("no"), RuntimeError("a bug")])
async def test_a_failing_model_fails_the_response_and_not_the_session(error: Exception):
    chat = BrokenChat(error=error)
    async with talking(chat=chat) as talk:
        await talk.hear(SPEECH, silence(0.7))
        (*_, done) = await talk.until(ResponseDone)
        assert done.response.status == "failed"
        assert isinstance(done.response.error, EngineFailed)
        chat.error = None
        await talk.hear(SPEECH, silence(0.7))
        (*_, done) = await talk.until(ResponseDone)
        assert done.response.status == "completed"


async def test_a_prompt_too_long_leaves_out_the_oldest():
    chat = BrokenChat(longest=4)
    async with talking(chat=chat) as talk:
        for word in ("one", "two", "three", "four", "five", "six"):
            await talk.do(CreateItem(Item("", role="user", parts=(Part("input_text", word),))))
        await talk.do(CreateResponse(modality="text"))
        (*_, done) = await talk.until(ResponseDone)
        assert done.response.status == "completed"
    assert [m.content for m in chat.requests[-1].messages] == ["Be brief.", "four", "five", "six"]


class BrokenRecognizer(FakeRecognizer):
    def transcribe(self, windows: Sequence[Window]) -> Sequence[Transcription]:
        raise RuntimeError("no")


async def test_a_failing_recogniser_is_told_and_the_session_goes_on():
    async with talking(recognizer=BrokenRecognizer()) as talk:
        await talk.hear(SPEECH, silence(0.7))
        (*_, failed) = await talk.until(TranscriptionFailed)
        assert isinstance(failed.error, EngineFailed)
        await talk.do(CreateResponse(modality="text"))
        await talk.until(ResponseDone)


async def test_closing_in_the_middle_frees_the_engines():
    chat = FakeChat()
    chat.hold.clear()
    async with talking(chat=chat) as talk:
        await talk.hear(SPEECH, silence(0.7))
        await talk.until(TranscriptionDone)
        assert chat.active == 1
        await talk.session.aclose()
    assert chat.active == 0


async def test_draining_waits_for_the_reply_and_takes_no_new_turn():
    chat = FakeChat()
    chat.hold.clear()
    async with talking(chat=chat) as talk:
        await talk.hear(SPEECH, silence(0.7))
        draining = asyncio.create_task(talk.session.drain(20.0))
        await asyncio.sleep(0.05)
        assert not draining.done()
        chat.hold.set()
        await draining
        assert (await talk.until(ResponseDone))[-1].response.status == "completed"
        await talk.hear(SPEECH, silence(0.7))
        await talk.do(CreateResponse(event_id="evt_9"))
        seen = await talk.until(Failed)
        assert not of(seen, TurnStarted)
        assert seen[-1].error.code == "server_draining"


async def test_truncate_beyond_the_end_is_clamped():
    async with talking() as talk:
        await talk.hear(SPEECH, silence(0.7))
        (*_, done) = await talk.until(ResponseDone)
        item = done.response.output[0]
        await talk.do(TruncateItem(item.id, 0, 999.0))
        await talk.do(TruncateItem("nowhere", 0, 1.0, "evt_2"))
        (*_, failed) = await talk.until(Failed)
        assert failed.error.code == "item_not_found"
        assert talk.session.conversation.get(item.id).parts[0].text == "It is noon. Time for lunch."


async def test_switching_to_manual_turns_drops_the_open_turn():
    async with talking() as talk:
        await talk.hear(SPEECH)
        await talk.until(TurnStarted)
        await talk.do(Configure(replace(talk.session.config, turn=None)))
        await talk.hear(silence(1.0), SPEECH)
        await talk.do(CommitAudio())
        seen = await talk.until(TranscriptionDone)
        assert len(of(seen, TranscriptionDone)) == 1


# --- faults that were found by reading, each with the sequence that showed it -----------------------------


async def test_one_partial_at_a_time_however_long_the_message():
    recognizer = FakeRecognizer()
    async with talking(recognizer=recognizer, config=SessionConfig(language="en", turn=None)) as talk:
        await talk.hear(tone(20.0, RATE), piece=20.0)
        await talk.do(CommitAudio())
        await talk.until(TranscriptionDone)
    assert len(recognizer.windows) <= 3


async def test_a_full_conversation_still_takes_what_is_said():
    async with talking(settings=["session.max_items=2"]) as talk:
        for _ in range(2):
            await talk.hear(SPEECH, silence(0.7))
            (*_, done) = await talk.until(ResponseDone)
            assert done.response.status == "completed"
        await talk.do(CreateItem(Item("", role="user", parts=(Part("input_text", "More."),))))
        (*_, failed) = await talk.until(Failed)
        assert failed.error.code == "conversation_full"


async def test_an_empty_text_reply_behind_the_gate_waits_for_it():
    config = SessionConfig(language="en", modality="text")
    async with talking(chat=FakeChat(""), config=config) as talk:
        await talk.hear(SPEECH, silence(0.7))
        kinds = [type(output).__name__ for output in await talk.until(ResponseDone)]
        assert kinds.index("ResponseStarted") < kinds.index("OutputDone") < kinds.index("ResponseDone")


class SpitefulChat(FakeChat):
    """Fails when it is cancelled."""

    async def _deltas(self, request: ChatRequest) -> AsyncIterator[Delta]:
        try:
            async for delta in super()._deltas(request):
                yield delta
        except asyncio.CancelledError:
            raise EngineFailed("cancelled") from None


async def test_a_model_that_fails_when_cancelled_does_not_hold_the_session():
    chat = SpitefulChat()
    chat.hold.clear()
    async with talking(chat=chat) as talk, asyncio.timeout(10):
        await talk.hear(SPEECH, silence(0.2))
        await chat.asked.wait()
        await talk.session.aclose()


async def test_prefill_goes_on_after_tasks_that_never_began():
    chat = PrefillCount()
    async with talking(chat=chat) as talk:
        await talk.do(CreateResponse(modality="text"))
        await talk.do(CancelResponse())
        await talk.until(ResponseDone)
        for text in ("One.", "Two.", "Three."):
            await talk.do(Configure(replace(talk.session.config, instructions=text)))
            await asyncio.sleep(0.05)
        assert chat.prefills >= 3


class PrefillCount(FakeChat):
    prefills = 0

    async def _deltas(self, request: ChatRequest) -> AsyncIterator[Delta]:
        self.prefills += request.limits.max_tokens == 0
        async for delta in super()._deltas(request):
            yield delta


async def test_deleting_the_item_that_is_spoken_and_barging_in_frees_the_engines():
    chat = FakeChat("One two three four five six seven eight nine ten. " * 20)
    async with talking(chat=chat, settings=["output.lead=0.2"]) as talk:
        await talk.hear(SPEECH, silence(0.7))
        (*_, started) = await talk.until(OutputStarted)
        await talk.until(OutputAudio)
        await talk.do(DeleteItem(started.item.id))
        await talk.hear(SPEECH)
        assert (await talk.until(ResponseDone))[-1].response.status == "cancelled"
        await asyncio.sleep(0.1)
        assert chat.active == 0


async def test_no_sample_is_lost_when_the_longest_utterance_is_cut():
    recognizer = FakeRecognizer()
    config = SessionConfig(language="en", turn=None)
    settings = ["session.max_utterance_seconds=2"]
    async with talking(recognizer=recognizer, config=config, settings=settings) as talk:
        await talk.hear(tone(3.0, RATE), piece=3.0)
        (*_, failed) = await talk.until(Failed)
        assert failed.error.code == "input_audio_buffer_full"
        await talk.do(CommitAudio())
        while len(of(talk.outputs, TranscriptionDone)) < 2:
            await talk.until(TranscriptionDone)
        assert sum(o.duration for o in of(talk.outputs, TranscriptionDone)) == pytest.approx(3.0, abs=0.033)


async def test_a_manual_commit_holds_every_sample():
    recognizer = FakeRecognizer()
    config = SessionConfig(language="en", turn=None)
    async with talking(recognizer=recognizer, config=config) as talk:
        await talk.hear(tone(0.1, RATE))
        await talk.do(CommitAudio())
        await talk.until(TranscriptionDone)
        samples = recognizer.windows[-1].samples
        assert len(samples) == 2048
        assert np.count_nonzero(samples) >= 1599
        await talk.hear(silence(0.5))
        await talk.do(CommitAudio())
        await talk.until(TranscriptionDone)
        assert not np.any(recognizer.windows[-1].samples)


class FailsOnce(FakeChat):
    failures = 1

    async def _deltas(self, request: ChatRequest) -> AsyncIterator[Delta]:
        if request.limits.max_tokens != 0 and self.failures:
            self.failures -= 1
            raise EngineFailed("busy")
        async for delta in super()._deltas(request):
            yield delta


async def test_a_failed_speculation_costs_nothing_but_time():
    async with talking(chat=FailsOnce()) as talk:
        await talk.hear(SPEECH, silence(0.7))
        (*_, done) = await talk.until(ResponseDone)
        assert done.response.status == "completed"
        (trace,) = talk.traces
        assert (trace.launched, trace.used, trace.discarded) == (1, 0, 1)


async def test_instructions_changed_in_the_pause_reach_the_reply():
    chat = FakeChat()
    async with talking(chat=chat) as talk:
        await talk.hear(SPEECH, silence(0.2))
        await chat.asked.wait()
        await talk.do(Configure(replace(talk.session.config, instructions="Pirate.", modality="text")))
        await talk.hear(silence(0.5))
        (*_, done) = await talk.until(ResponseDone)
        assert done.response.modality == "text"
        assert chat.requests[-1].messages[0] == Message("system", "Pirate.")


async def test_truncating_what_plays_stops_it():
    chat = FakeChat("One two three four five six seven eight nine ten. " * 20)
    async with talking(chat=chat) as talk:
        await talk.hear(SPEECH, silence(0.7))
        (*_, started) = await talk.until(OutputStarted)
        for _ in range(12):
            await talk.until(OutputAudio)
        await asyncio.sleep(0.5)
        await talk.do(TruncateItem(started.item.id, 0, 0.3))
        seen = await talk.until(ItemTruncated)
        assert of(seen, ResponseDone)[0].response.status == "cancelled"
        assert seen[-1].audio_end == pytest.approx(0.3)
        kept = talk.session.conversation.get(started.item.id).parts[0].text
        assert kept is not None
        assert len(kept) < 20


async def test_a_refused_response_does_not_change_the_one_that_is_owed():
    chat = FakeChat()
    async with talking(chat=chat, config=SessionConfig(language="en", turn=None)) as talk:
        await talk.hear(SPEECH)
        await talk.do(CommitAudio())
        await talk.do(CreateResponse(modality="text", metadata={"a": "b"}))
        await talk.do(CreateResponse())
        (*_, done) = await talk.until(ResponseDone)
        assert (done.response.modality, done.response.metadata) == ("text", {"a": "b"})


async def test_cancelling_a_response_that_is_owed_ends_it():
    async with talking(config=SessionConfig(language="en", turn=None)) as talk:
        await talk.hear(SPEECH)
        await talk.do(CommitAudio())
        await talk.do(CreateResponse(metadata={"n": "1"}))
        await talk.do(CancelResponse())
        (*_, done) = await talk.until(ResponseDone)
        assert (done.response.status, done.response.metadata) == ("cancelled", {"n": "1"})


async def test_draining_waits_for_the_question_that_was_asked():
    async with talking() as talk:
        await talk.hear(SPEECH, silence(0.3))
        draining = asyncio.create_task(talk.session.drain(20.0))
        await asyncio.sleep(0.05)
        assert not draining.done()
        await talk.hear(silence(0.4))
        await draining
        assert (await talk.until(ResponseDone))[-1].response.status == "completed"


async def test_a_loader_that_fails_is_told():
    async with talking(config=SessionConfig(language="de")) as talk:
        object.__setattr__(talk.session._engines, "multilingual", fails)
        await talk.hear(SPEECH, silence(0.7))
        (*_, failed) = await talk.until(TranscriptionFailed)
        assert isinstance(failed.error, EngineFailed)


async def fails() -> None:
    raise RuntimeError("no such model")


class OneSlot(FakeChat):
    """One request at a time, as an owner has with llama.cpp, and slow to let go of it."""

    def __init__(self, *replies: str) -> None:
        super().__init__(*replies)
        self.slot = asyncio.Lock()

    @asynccontextmanager
    async def stream(self, request: ChatRequest) -> AsyncIterator[AsyncIterator[Delta]]:
        await self.slot.acquire()
        try:
            async with super().stream(request) as deltas:
                yield deltas
        finally:
            letting_go = asyncio.create_task(asyncio.sleep(0.05))
            while not letting_go.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([letting_go])
            self.slot.release()


class RefusesOnce(FakeVoice):
    @asynccontextmanager
    async def synthesize(self, text: str, voice: Voice, *, owner: str, deadline: float):
        if not self.spoken:
            self.spoken.append(text)
            raise Overloaded("the queue is full")
        async with super().synthesize(text, voice, owner=owner, deadline=deadline) as chunks:
            yield chunks


async def test_a_speculation_that_fails_while_it_is_cancelled_does_not_take_its_successor_with_it():
    voice = RefusesOnce()
    chat = OneSlot("It is noon now. " * 30)
    async with talking(chat=chat, voice=voice, settings=["llm.prefill=false"]) as talk:
        await talk.hear(silence(0.3), SPEECH, silence(0.15))
        while not voice.spoken:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await talk.do(CreateItem(Item("x", role="user", parts=(Part("input_text", "hi"),))))
        await talk.hear(silence(0.6))
        assert of(await talk.until(OutputAudio), OutputAudio)


class OneChunk(FakeVoice):
    async def _chunks(self, samples: np.ndarray) -> AsyncIterator[np.ndarray]:
        yield samples


async def test_a_cancel_within_a_clause_keeps_the_words_heard_of_it():
    chat = FakeChat(
        "Alpha bravo charlie delta echo foxtrot golf hotel india juliett kilo lima mike november."
    )
    async with talking(chat=chat, voice=OneChunk(), settings=["output.lead=0.3"]) as talk:
        await talk.hear(silence(0.3), SPEECH, silence(0.7))
        sent = 0.0
        while sent < 1.0:
            sent += len(of(await talk.until(OutputAudio), OutputAudio)[-1].samples) / 24_000
        await talk.do(CancelResponse())
        done = of(await talk.until(ResponseDone), ResponseDone)[0].response
    kept = talk.session.conversation.items[-1].parts[0].text
    # The fake voice says a letter in 0.05 s.
    assert len(kept) * 0.05 <= sent
    assert done.usage.output_audio_tokens <= round((sent + 0.1) * 20)


async def test_what_a_client_never_took_was_not_heard():
    chat = FakeChat("One two three. Four five six. Seven eight nine. Ten eleven twelve.")
    async with talking(chat=chat, settings=["output.lead=0.5"]) as talk:
        await talk.hear(silence(0.3), SPEECH, silence(0.7))
        await talk.until(OutputStarted)
        await asyncio.sleep(0.5)  # its socket takes nothing
        await talk.do(CancelResponse())
        await asyncio.sleep(0.05)
        seen = await talk.until(ResponseDone)
    assert not of(seen, OutputAudio)
    assert talk.session.conversation.items[-1].parts[0].text == ""
    assert seen[-1].response.usage.output_audio_tokens == 0


async def test_a_refused_truncation_stops_nothing():
    chat = FakeChat("one two three")
    chat.hold.clear()
    async with talking(chat=chat) as talk:
        await talk.do(CreateItem(Item("u", role="user", parts=(Part("input_text", "hi"),))))
        await talk.do(CreateResponse(modality="text"))
        started = of(await talk.until(OutputText), OutputStarted)[0]
        await talk.do(TruncateItem(started.item.id, 0, 0.5, "E1"))
        assert of(await talk.until(Failed), Failed)[0].error.code == "not_truncatable"
        chat.hold.set()
        assert of(await talk.until(ResponseDone), ResponseDone)[0].response.status == "completed"


class MishearsOnce(FakeRecognizer):
    def transcribe(self, windows: Sequence[Window]) -> Sequence[Transcription]:
        if windows[0].final and not any(window.final for window in self.windows):
            self.windows += windows
            raise RuntimeError("once")
        return super().transcribe(windows)


async def test_a_failed_decode_that_speech_went_on_from_is_not_told_of():
    async with talking(recognizer=MishearsOnce(), settings=["asr.partial_interval=10"]) as talk:
        await talk.hear(silence(0.3), SPEECH, silence(0.2), SPEECH, silence(0.8))
        seen = await talk.until(ResponseDone)
    assert len(of(seen, TranscriptionDone)) == 1
    assert not of(seen, TranscriptionFailed)


class Hears(FakeRecognizer):
    """Hears what the question was, and over the reply something else."""

    def __init__(self, over: str) -> None:
        super().__init__()
        self.over = over

    def transcribe(self, windows: Sequence[Window]) -> Sequence[Transcription]:
        found = super().transcribe(windows)
        if any(window.final for window in self.windows):
            self.text = self.over
        return found


LONG = "It is noon and the sun stands high over the city. " * 8


async def over_a_reply(heard: str, *sounds: np.ndarray) -> tuple[Talk, list[Output]]:
    """What is said over a long reply, recognised as `heard`; the outputs of the next second."""
    async with talking(
        recognizer=Hears(heard), chat=FakeChat(LONG, "Yes?"), settings=["output.lead=0.3"]
    ) as talk:
        await talk.hear(silence(0.3), SPEECH, silence(0.7))
        await talk.until(OutputAudio)
        reading = asyncio.create_task(talk.until(ResponseDone))
        await talk.hear(*sounds, silence(0.3))
        await asyncio.wait([reading], timeout=1.0)
        if not reading.done():
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        return talk, [] if reading.cancelled() else reading.result()


async def test_words_over_a_reply_cancel_it_and_the_client_hears_of_the_turn_then():
    _, seen = await over_a_reply("no stop that", SPEECH)
    kinds = [type(output).__name__ for output in seen]
    assert kinds.index("TurnStarted") < kinds.index("ResponseDone")
    assert seen[-1].response.reason == "turn_detected"
    assert "OutputAudio" not in kinds[kinds.index("TurnStarted") :]


@pytest.mark.parametrize("heard", ["Mm-hm.", "", "it is noon and the"])
async def test_a_hum_a_cough_and_an_echo_leave_the_reply_alone(heard: str):
    talk, seen = await over_a_reply(heard, SPEECH[:8000])
    assert not of(seen, ResponseDone)
    assert not of(seen, TurnStarted)
    assert len(talk.session.conversation.items) == 2


async def test_a_reply_is_lower_while_somebody_may_want_the_floor():
    async with talking(recognizer=Hears(""), chat=FakeChat(LONG), settings=["output.lead=0.2"]) as talk:
        await talk.hear(silence(0.3), SPEECH, silence(0.7))
        pieces: list[np.ndarray] = []

        async def listen() -> None:
            while True:
                pieces.append(of(await talk.until(OutputAudio), OutputAudio)[-1].samples)

        async def now() -> float:
            """The loudest sample of what is sent from here on."""
            await asyncio.sleep(0.05)
            before = len(pieces)
            while len(pieces) < before + 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            return float(np.abs(pieces[-1][-500:]).max())

        listening = asyncio.create_task(listen())
        loud = await now()
        await talk.hear(SPEECH[:4800])
        assert await now() == pytest.approx(0.2 * loud, rel=0.02)
        await talk.hear(silence(0.5))
        assert await now() == pytest.approx(loud)
        listening.cancel()


@pytest.mark.parametrize("rest", [0.0, 0.3])
async def test_a_client_that_sends_no_more_audio_has_ended_its_turn(rest: float, monkeypatch):
    monkeypatch.setattr(session, "MUTED", 0.05)
    async with talking() as talk:
        await talk.hear(silence(0.3), SPEECH, silence(rest))
        seen = await talk.until(ResponseDone)
        assert len(of(seen, TurnStarted)) == 1
        await talk.hear(silence(0.3), SPEECH, silence(rest))
        assert of(await talk.until(ResponseDone), TranscriptionDone)


class FailsFirst(FakeRecognizer):
    """Fails to decode the first candidate end."""

    def transcribe(self, windows: Sequence[Window]) -> Sequence[Transcription]:
        self.windows += windows
        if sum(window.final for window in self.windows) == 1:
            raise RuntimeError("once")
        return super().transcribe(windows)


async def test_a_commit_in_the_pause_after_a_failed_decode_is_transcribed_once():
    async with talking(recognizer=FailsFirst(), settings=["asr.partial_interval=10"]) as talk:
        await talk.hear(silence(0.3), SPEECH, silence(0.2))
        await talk.do(CommitAudio())
        await talk.do(CreateResponse(modality="text"))
        seen = await talk.until(ResponseDone)
    assert len(of(seen, TranscriptionDone)) == 1
    assert not of(seen, TranscriptionFailed)


async def test_an_idle_session_has_no_timers(monkeypatch: pytest.MonkeyPatch):
    async with talking() as talk:
        await talk.hear(silence(0.3))
        await asyncio.sleep(0.1)
        loop = asyncio.get_running_loop()
        timers = []
        call_at = loop.call_at
        monkeypatch.setattr(loop, "call_at", lambda *args, **kw: timers.append(args) or call_at(*args, **kw))
        await asyncio.sleep(0.3)
        assert len(timers) == 1  # this test's own
        monkeypatch.undo()
