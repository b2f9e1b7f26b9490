"""Tools in a conversation: called once and whole whatever the user does, and never before the gate opens."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from fakes import FakeChat, FakeVoice
from test_session import SPEECH, Talk, of, silence, talking

from antiphon.llm.base import CallDelta, ChatRequest, Delta, Message, ToolCall
from antiphon.pipeline.events import (
    Configure,
    CreateItem,
    CreateResponse,
    Failed,
    Item,
    ItemDone,
    OutputAudio,
    OutputCall,
    OutputDone,
    OutputStarted,
    OutputText,
    Part,
    ResponseDone,
    ResponseStarted,
    SessionConfig,
    TurnStarted,
)
from antiphon.pipeline.tools import Tool, ToolUse

BOOK = ToolUse((Tool("book", "Books a table.", {"type": "object"}),))
CONFIG = SessionConfig(instructions="Be brief.", language="en", tools=BOOK)
ARGUMENTS = ('{"ta', 'ble"', ": 4", "}")


class Waiter(FakeChat):
    """Says something, then calls `book`; says `done` once it finds a call in its prompt.

    arguments: of the call, in pieces. reason: why it stopped.
    """

    def __init__(
        self,
        said: str = "",
        *,
        done: str = "It is booked.",
        arguments: Sequence[str] = ARGUMENTS,
        reason: str = "tool_calls",
        calls: int = 1,
    ) -> None:
        super().__init__(done)
        self.said = said
        self.arguments = arguments
        self.reason = reason
        self.calls = calls

    async def _deltas(self, request: ChatRequest) -> AsyncIterator[Delta]:
        if any(message.tool_calls for message in request.messages) or request.limits.max_tokens == 0:
            async for delta in super()._deltas(request):
                yield delta
            return
        self.requests.append(request)
        self.asked.set()
        for word in self.said.split():
            await asyncio.sleep(0)
            yield Delta(word + " ")
        for index in range(self.calls):
            yield Delta("", calls=(CallDelta(index, f"call_{len(self.requests)}{index}", "book"),))
            for piece in self.arguments:
                await asyncio.sleep(0)
                yield Delta("", calls=(CallDelta(index, arguments=piece),))
                await self.hold.wait()
        yield Delta("", self.reason)  # type: ignore[arg-type]


async def answer(talk: Talk, call: Item) -> None:
    await talk.do(CreateItem(Item("", "function_call_output", call_id=call.call_id, output="table 4")))


async def test_what_is_said_before_a_call_is_spoken_and_the_call_follows():
    async with talking(chat=Waiter("Let me see."), config=CONFIG) as talk:
        await talk.hear(SPEECH, silence(0.7))
        seen = await talk.until(ResponseDone)
    kinds = [type(o) for o in seen]
    told = [k for k in dict.fromkeys(kinds) if k in (ResponseStarted, OutputStarted, OutputDone, OutputCall)]
    assert told == [ResponseStarted, OutputStarted, OutputDone, OutputCall]
    assert "".join(o.delta for o in of(seen, OutputText)).strip() == "Let me see."
    assert of(seen, OutputAudio)
    (call,) = of(seen, OutputCall)
    assert (call.item.name, call.item.arguments, call.output_index) == ("book", '{"table": 4}', 1)
    response = seen[-1].response
    assert response.status == "completed"
    assert [item.kind for item in response.output] == ["message", "function_call"]
    assert call.previous_item_id == response.output[0].id


async def test_a_call_alone_has_no_message_and_its_result_is_in_the_next_prompt():
    chat = Waiter()
    async with talking(chat=chat, config=CONFIG) as talk:
        await talk.hear(SPEECH, silence(0.7))
        seen = await talk.until(ResponseDone)
        assert not of(seen, OutputStarted)
        (call,) = of(seen, OutputCall)
        assert (call.output_index, seen[-1].response.output) == (0, (call.item,))
        await answer(talk, call.item)
        await talk.do(CreateResponse())
        seen = await talk.until(ResponseDone)
    assert "".join(o.delta for o in of(seen, OutputText)) == "It is booked."
    assert chat.requests[0].tools == BOOK
    assert chat.requests[-1].messages == [
        Message("system", "Be brief."),
        Message("user", "what time is it"),
        Message("assistant", "", tool_calls=(ToolCall(call.item.call_id, "book", '{"table": 4}'),)),
        Message("tool", "table 4", tool_call_id=call.item.call_id),
    ]


async def test_two_calls_are_two_items():
    async with talking(chat=Waiter(calls=2), config=CONFIG) as talk:
        await talk.do(CreateResponse())
        seen = await talk.until(ResponseDone)
        assert [call.output_index for call in of(seen, OutputCall)] == [0, 1]
        assert len({call.item.call_id for call in of(seen, OutputCall)}) == 2
        assert [item.kind for item in talk.session.conversation.items] == ["function_call"] * 2


async def test_a_text_response_calls_as_well_and_begins_no_message_with_whitespace():
    config = replace(CONFIG, modality="text")
    async with talking(chat=Waiter("\n"), config=config) as talk:
        await talk.do(CreateResponse())
        seen = await talk.until(ResponseDone)
    assert [type(o) for o in seen] == [ResponseStarted, OutputCall, ResponseDone]


async def test_a_response_may_have_tools_of_its_own_and_be_outside_the_conversation():
    chat = Waiter()
    async with talking(chat=chat) as talk:
        own = ToolUse(BOOK.tools, "required", "book")
        await talk.do(CreateResponse(tools=own, in_conversation=False))
        seen = await talk.until(ResponseDone)
        (call,) = of(seen, OutputCall)
        assert (call.in_conversation, len(talk.session.conversation)) == (False, 0)
        assert chat.requests[-1].tools == own


async def test_a_result_for_an_unknown_call_is_refused():
    async with talking(config=CONFIG) as talk:
        await answer(talk, Item("", "function_call", call_id="nobody's"))
        (failed,) = await talk.until(Failed)
        assert (failed.error.code, failed.error.param) == ("invalid_tool_call_id", "item.call_id")


@pytest.mark.parametrize(
    ("reason", "status"), [("length", "incomplete"), ("stop", "failed"), ("tool_calls", "failed")]
)
async def test_half_a_call_is_none(reason: str, status: str):
    chat = Waiter(arguments=ARGUMENTS[:2], reason=reason)
    async with talking(chat=chat, config=CONFIG) as talk:
        await talk.do(CreateResponse())
        seen = await talk.until(ResponseDone)
        assert not of(seen, OutputCall)
        assert (seen[-1].response.status, seen[-1].response.output) == (status, ())
        assert len(talk.session.conversation) == 0


async def test_case_44_a_call_behind_the_gate_is_not_out_when_the_user_goes_on():
    """The model calls in the pause; what the user then adds makes another prompt, and one call in all."""
    chat = Waiter()
    async with talking(chat=chat, config=CONFIG) as talk:
        await talk.hear(SPEECH, silence(0.3))
        await chat.asked.wait()
        await asyncio.sleep(0.05)
        assert chat.active == 0
        assert len(talk.session.conversation) == 0
        await talk.hear(SPEECH, silence(0.7))
        seen = await talk.until(ResponseDone)
        assert len(of(seen, OutputCall)) == 1
        assert [item.kind for item in talk.session.conversation.items] == ["message", "function_call"]


@pytest.mark.parametrize("offset", range(10))
async def test_case_43_a_tool_is_called_once_under_barge_in_at_any_moment(offset: int):
    """The user speaks over the reply at one of ten moments, from its first audio to after its call; what the
    client does with a call it does as soon as it has it."""
    chat = Waiter("One two three four five six.")
    done = 0
    async with talking(chat=chat, voice=FakeVoice(), config=CONFIG, settings=["output.lead=0.2"]) as talk:
        await talk.hear(SPEECH, silence(0.7))
        await talk.until(ResponseStarted)
        talker = asyncio.create_task(_interrupt(talk, offset * 0.16))
        reasons: list[str | None] = []
        ended = 0
        while ended < 2:
            (*_, last) = seen = await talk.until(ResponseDone)
            ended += 1
            reasons.append(last.response.reason)
            for call in of(seen, OutputCall):
                done += 1
                await answer(talk, call.item)
            if ended == 2 and done == 0:
                ended -= 1
        await talker
        kept = [item.call_id for item in talk.session.conversation.items if item.kind == "function_call"]
        results = [i for i in talk.session.conversation.items if i.kind == "function_call_output"]
    assert done == 1
    assert len(kept) == 1
    assert [result.call_id for result in results] in ([], kept)
    calls = {id(m): m for r in chat.requests for m in r.messages if m.tool_calls}
    assert all(len(m.tool_calls) == 1 for m in calls.values())
    assert reasons.count("turn_detected") <= 1


async def _interrupt(talk: Talk, after: float) -> None:
    await asyncio.sleep(after)
    await talk.hear(SPEECH, silence(0.7))


async def test_a_cancel_in_the_middle_of_the_arguments_leaves_no_call():
    chat = Waiter()
    chat.hold.clear()
    async with talking(chat=chat, config=CONFIG) as talk:
        await talk.hear(SPEECH, silence(0.7))
        await talk.until(ResponseStarted)
        await talk.hear(SPEECH, silence(0.7))
        seen = await talk.until(ResponseDone)
        assert seen[-1].response.status == "cancelled"
        assert seen[-1].response.output == ()
        chat.hold.set()
        seen = [*seen, *await talk.until(ResponseDone)]
        assert len(of(seen, OutputCall)) == 1
        assert len(of(talk.outputs, TurnStarted)) == 2


async def test_new_tools_make_a_new_speculation():
    chat = Waiter("Yes.")
    async with talking(chat=chat, config=replace(CONFIG, tools=ToolUse())) as talk:
        await talk.hear(SPEECH, silence(0.3))
        await chat.asked.wait()
        await talk.do(Configure(CONFIG))
        await talk.hear(silence(0.4))
        await talk.until(ResponseDone)
        assert [r.tools for r in chat.requests] == [ToolUse(), BOOK]


async def test_results_that_come_late_stand_after_their_calls():
    numbers = itertools.count()
    items = (
        Item("", "function_call", name="book", arguments="{}", call_id="a"),
        Item("", "function_call", name="book", arguments="{}", call_id="b"),
        Item("", role="user", parts=(Part("input_text", "Hurry up."),)),
        Item("", "function_call_output", call_id="b", output="B"),
        Item("", "function_call_output", call_id="a", output="A"),
    )
    chat = Waiter()
    async with talking(chat=chat, config=replace(CONFIG, modality="text")) as talk:
        for item in items:
            await talk.do(CreateItem(replace(item, id=f"item{next(numbers)}")))
            await talk.until(ItemDone)
        await talk.do(CreateResponse())
        await talk.until(ResponseDone)
    calls = (ToolCall("a", "book", "{}"), ToolCall("b", "book", "{}"))
    assert chat.requests[-1].messages[1:] == [
        Message("assistant", "", tool_calls=calls),
        Message("tool", "A", tool_call_id="a"),
        Message("tool", "B", tool_call_id="b"),
        Message("user", "Hurry up."),
    ]
