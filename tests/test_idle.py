"""A silence after the agent's reply: counted on the session's clock, once, and answered."""

import asyncio
from dataclasses import replace

from fakes import FakeChat
from test_session import SPEECH, of, silence, talking

from antiphon.llm.base import Message
from antiphon.pipeline.events import (
    AudioCommitted,
    Configure,
    Configured,
    CreateResponse,
    OutputStarted,
    ResponseDone,
    ResponseStarted,
    SessionConfig,
    TimedOut,
    TurnPolicy,
    TurnStarted,
)
from antiphon.pipeline.idle import SILENCE, Idle

CONFIG = SessionConfig(
    instructions="Be brief.", language="en", modality="text", turn=TurnPolicy(idle_timeout=5.0)
)


def test_the_silence_begins_when_the_reply_was_heard_and_is_told_once():
    idle = Idle()
    assert idle.over(100.0, 5.0) is None
    idle.begin(12.0)
    idle.stir(11.0)
    assert idle.over(16.9, 5.0) is None
    assert idle.over(16.9, None) is None
    assert idle.over(17.0, 5.0) == 12.0
    assert idle.over(30.0, 5.0) is None


def test_a_word_begins_it_anew():
    idle = Idle()
    idle.stir(3.0)
    idle.begin(12.0)
    idle.stir(14.0)
    assert idle.over(18.9, 5.0) is None
    assert idle.over(19.0, 5.0) == 14.0


async def test_after_the_timeout_the_silence_is_an_item_and_the_agent_speaks():
    chat = FakeChat("It is noon.", "Are you there?")
    async with talking(chat=chat, config=CONFIG) as talk:
        await talk.hear(SPEECH, silence(0.7))
        first = await talk.until(ResponseDone)
        assert not of(first, TimedOut)
        await talk.hear(silence(5.2))
        seen = await talk.until(ResponseDone)
        kinds = [type(o).__name__ for o in seen[:7]]
        assert kinds == [
            "TimedOut", "AudioCommitted", "ItemAdded", "ItemDone", "TranscriptionDone",
            "ResponseStarted", "OutputStarted",
        ]  # fmt: skip
        (out,) = of(seen, TimedOut)
        assert out.item_id == of(seen, AudioCommitted)[0].item_id
        assert 5.0 <= out.end - out.start < 5.1
        assert chat.requests[-1].messages[-2:] == [
            Message("assistant", "It is noon."),
            Message("user", SILENCE),
        ]
        assert len(talk.session.conversation) == 4
        await talk.do(CreateResponse())
        await talk.until(ResponseDone)
        assert Message("user", SILENCE) not in chat.requests[-1].messages


async def test_a_spoken_reply_is_heard_out_first():
    config = replace(CONFIG, modality="audio")
    async with talking(chat=FakeChat("Noon."), config=config) as talk:
        await talk.hear(SPEECH, silence(0.7))
        await talk.until(ResponseDone)
        ended = talk.session._ear.at
        await talk.hear(silence(5.4))
        (out,) = of(await talk.until(TimedOut), TimedOut)
        assert ended < out.start < ended + 0.3


async def test_no_silence_without_a_reply_before_nor_while_somebody_speaks():
    chat = FakeChat("It is noon.")
    async with talking(chat=chat, config=CONFIG) as talk:
        await talk.hear(silence(6.0), piece=0.5)
        await talk.do(CreateResponse())
        await talk.until(ResponseDone)
        await talk.hear(silence(3.0), *[SPEECH] * 4, silence(0.7), piece=0.5)
        seen = await talk.until(ResponseDone)
        assert not of(seen, TimedOut)
        assert len(of(seen, TurnStarted)) == 1
        await talk.do(Configure(replace(CONFIG, turn=TurnPolicy())))
        await talk.until(Configured)
        await talk.hear(silence(6.0), piece=0.5)
        await asyncio.sleep(0.05)
        await talk.do(Configure(CONFIG))
        seen = await talk.until(Configured)
        assert not of(seen, ResponseStarted)
        assert not of(seen, OutputStarted)
