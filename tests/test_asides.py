"""Responses outside of the conversation, beside an active one."""

import asyncio

from fakes import FakeChat
from test_session import SPEECH, of, silence, talking

from antiphon.llm.base import Message
from antiphon.pipeline import asides
from antiphon.pipeline.events import (
    CancelResponse,
    CreateResponse,
    Failed,
    Item,
    OutputText,
    Part,
    ResponseDone,
    ResponseStarted,
    TurnStarted,
)

LONG = "One two three four five six seven eight nine ten. " * 4
JUDGE = CreateResponse(
    instructions="Is it a question?",
    modality="text",
    metadata={"topic": "judge"},
    input=[Item("", role="user", parts=(Part("input_text", "what time is it"),))],
    in_conversation=False,
)


async def test_an_aside_answers_while_the_reply_plays_on():
    chat = FakeChat(LONG, "Yes.")
    async with talking(chat=chat, settings=["output.lead=0.2"]) as talk:
        await talk.hear(SPEECH, silence(0.7))
        (*_, main) = await talk.until(ResponseStarted)
        await talk.do(JUDGE)
        seen = await talk.until(ResponseDone)
        done = seen[-1].response
        assert (done.status, done.in_conversation, done.metadata) == ("completed", False, {"topic": "judge"})
        assert "".join(o.delta for o in of(seen, OutputText) if o.response_id == done.id) == "Yes."
        assert chat.requests[-1].messages == [
            Message("system", "Is it a question?"),
            Message("user", "what time is it"),
        ]
        assert chat.requests[-1].owner != chat.requests[0].owner
        assert len(talk.session.conversation) == 2
        await talk.hear(SPEECH)
        cut = (await talk.until(ResponseDone))[-1].response
        assert (cut.id, cut.reason) == (main.response.id, "turn_detected")


async def test_the_users_voice_leaves_an_aside_alone_and_its_id_cancels_it():
    chat = FakeChat(LONG, LONG, "Yes.")
    async with talking(chat=chat, settings=["output.lead=0.2"]) as talk:
        await talk.hear(SPEECH, silence(0.7))
        await talk.until(ResponseStarted)
        chat.hold.clear()
        await talk.do(JUDGE)
        (*_, aside) = await talk.until(ResponseStarted)
        await talk.hear(SPEECH)
        seen = await talk.until(ResponseDone)
        assert of(seen, TurnStarted)
        assert seen[-1].response.id != aside.response.id
        await talk.do(CancelResponse(aside.response.id))
        done = (await talk.until(ResponseDone))[-1].response
        assert (done.id, done.status, done.reason) == (aside.response.id, "cancelled", "client_cancelled")
        await talk.do(CancelResponse(aside.response.id))
        (*_, failed) = await talk.until(Failed)
        assert failed.error.code == "response_cancel_not_active"
        chat.hold.set()


async def test_there_are_only_so_many_and_none_outlives_the_session():
    chat = FakeChat(LONG)
    async with talking(chat=chat, settings=["output.lead=0.2"]) as talk:
        await talk.hear(SPEECH, silence(0.7))
        await talk.until(ResponseStarted)
        chat.hold.clear()
        for _ in range(asides.MOST + 1):
            await talk.do(JUDGE)
        seen = await talk.until(Failed)
        assert seen[-1].error.code == "conversation_already_has_active_response"
        await asyncio.sleep(0.05)
        assert len(chat.requests) == 1 + asides.MOST
    assert chat.active == 0


async def test_in_the_conversation_there_is_still_one_response():
    async with talking(chat=FakeChat(LONG), settings=["output.lead=0.2"]) as talk:
        await talk.hear(SPEECH, silence(0.7))
        await talk.until(ResponseStarted)
        await talk.do(CreateResponse())
        (*_, failed) = await talk.until(Failed)
        assert failed.error.code == "conversation_already_has_active_response"
