"""Cases 8 to 15: the conversation holds what was heard, no less and no more (docs/cases.md says where)."""

import asyncio
import re

import pytest
from fakes import FakeChat, FakeVoice, fake_engines
from test_session import SPEECH, Hears, Talk, of, silence, talking
from test_websocket import QUESTION, client, settings

from antiphon.llm.base import Message
from antiphon.pipeline.events import (
    CancelResponse,
    CreateItem,
    CreateResponse,
    Failed,
    Item,
    ItemTruncated,
    OutputAudio,
    OutputStarted,
    OutputText,
    Part,
    ResponseDone,
    TruncateItem,
)
from antiphon.transport.server import running

REPLY = "Alpha bravo charlie. Delta echo foxtrot golf. Hotel india juliett."
SPOKEN = 0.05 * (len(REPLY) - 2)
"""Seconds: the fake voice says a letter in 0.05 s, and not the space before a clause."""


async def next_prompt(talk: Talk, chat: FakeChat) -> list[Message]:
    """What the model is told next, after one more message of the user's."""
    await talk.do(CreateItem(Item("", role="user", parts=(Part("input_text", "And?"),))))
    await talk.do(CreateResponse(modality="text"))
    await talk.until(ResponseDone)
    return list(chat.requests[-1].messages)


def said(prompt: list[Message]) -> list[str]:
    return [message.content for message in prompt if message.role == "assistant"]


def prefix(text: str) -> bool:
    """A prefix of the reply that ends where one of its words does."""
    return any(text == REPLY[: m.end()] for m in re.finditer(r"\S+", REPLY)) or text == ""


@pytest.mark.parametrize(
    ("cuts", "kept"),
    [
        ([0.0], 0.0),
        ([0.37 * SPOKEN], 0.37 * SPOKEN),
        ([SPOKEN], SPOKEN),
        ([SPOKEN + 0.001], SPOKEN),
        ([9999.0], SPOKEN),
        ([0.37 * SPOKEN, 0.37 * SPOKEN], 0.37 * SPOKEN),
        ([0.37 * SPOKEN, 0.9 * SPOKEN], 0.37 * SPOKEN),
        ([0.9 * SPOKEN, 0.37 * SPOKEN], 0.37 * SPOKEN),
        ([0.37 * SPOKEN, 0.0], 0.0),
    ],
)
async def test_case_15_truncated_anywhere_the_next_prompt_holds_the_heard_prefix(
    cuts: list[float], kept: float
):
    chat = FakeChat(REPLY, "Well.")
    async with talking(chat=chat) as talk:
        await talk.hear(silence(0.3), SPEECH, silence(0.7))
        item = (await talk.until(ResponseDone))[-1].response.output[0]
        for cut in cuts:
            await talk.do(TruncateItem(item.id, 0, cut, "mine"))
            (*_, truncated) = await talk.until(ItemTruncated)
            assert truncated.item_id == item.id
        assert truncated.audio_end == pytest.approx(kept)
        (heard,) = said(await next_prompt(talk, chat)) or [""]
    assert not of(talk.outputs, Failed)
    assert prefix(heard)
    assert 0.05 * len(heard) <= kept + 0.11
    longer = REPLY[len(heard) :].lstrip().split(" ")[0]
    assert heard == REPLY or 0.05 * (len(heard) + 1 + len(longer)) > kept - 0.06


@pytest.mark.parametrize("share", [0.0, 0.37, 0.8])
async def test_case_15_truncated_while_it_plays(share: float):
    chat = FakeChat(REPLY, "Well.")
    async with talking(chat=chat, settings=["output.lead=0.5"]) as talk:
        await talk.hear(silence(0.3), SPEECH, silence(0.7))
        sent = 0.0
        while sent < share * SPOKEN + 0.1:
            sent += len(of(await talk.until(OutputAudio), OutputAudio)[-1].samples) / 24_000
        item = of(talk.outputs, OutputStarted)[-1].item
        await talk.do(TruncateItem(item.id, 0, share * SPOKEN))
        seen = await talk.until(ItemTruncated)
        assert of(seen, ResponseDone)[0].response.status == "cancelled"
        assert seen[-1].audio_end <= share * SPOKEN
        (heard,) = said(await next_prompt(talk, chat)) or [""]
        assert prefix(heard)
        assert 0.05 * len(heard) <= share * SPOKEN + 0.11


@pytest.mark.parametrize("pieces", [1, 4, 12])
async def test_case_08_only_what_was_played_is_committed_and_case_09_all_of_it(pieces: int):
    """Cancelled by the client after so many tenths of a second have left for it, and been played."""
    chat = FakeChat(REPLY, "Well.")
    now = asyncio.get_running_loop().time
    async with talking(chat=chat, settings=["output.lead=0.1"]) as talk:
        await talk.hear(silence(0.3), SPEECH, silence(0.7))
        began = 0.0
        for _ in range(pieces):
            await talk.until(OutputAudio)
            began = began or now()
        played = now() - began
        await talk.do(CancelResponse())
        await talk.until(ResponseDone)
        (heard,) = said(await next_prompt(talk, chat)) or [""]
    sent = sum(len(o.samples) for o in of(talk.outputs, OutputAudio)) / 24_000
    assert prefix(heard)
    assert 0.05 * len(heard) <= sent + 0.11, "no word that was not sent"
    longer = REPLY[len(heard) :].lstrip().split(" ")[0]
    least = min(played, sent)
    assert heard == REPLY or 0.05 * (len(heard) + 1 + len(longer)) > least - 0.16, (
        "every word that was played"
    )


async def test_case_11_an_interrupted_reply_is_in_the_prompt_once():
    chat = FakeChat(REPLY * 4, "Yes?")
    async with talking(recognizer=Hears("no stop"), chat=chat, settings=["output.lead=0.3"]) as talk:
        await talk.hear(silence(0.3), SPEECH, silence(0.7))
        for _ in range(12):
            await talk.until(OutputAudio)
        await talk.hear(SPEECH, silence(0.8))
        await talk.until(ResponseDone)
        await talk.until(ResponseDone)
        prompt = list(chat.requests[-1].messages)
    assert [m.role for m in prompt] == ["system", "user", "assistant", "user"]
    assert prompt[-1].content == "no stop"
    text = "".join(o.delta for o in of(talk.outputs, OutputText))
    assert text.startswith(prompt[2].content)


@pytest.mark.parametrize("truncated", [False, True])
async def test_case_13_a_reply_of_which_nothing_was_played_is_not_in_the_prompt(truncated: bool):
    """It exists for the client, and then it is cut before its first sound."""
    chat = FakeChat(REPLY, "Well.")
    chat.hold.clear()
    async with talking(chat=chat) as talk:
        await talk.hear(silence(0.3), SPEECH, silence(0.7))
        item = (await talk.until(OutputStarted))[-1].item
        if truncated:
            await talk.do(TruncateItem(item.id, 0, 0.0))
            assert (await talk.until(ItemTruncated))[-1].audio_end == 0.0
        else:
            await talk.do(CancelResponse())
            assert (await talk.until(ResponseDone))[-1].response.status == "cancelled"
        chat.hold.set()
        assert said(await next_prompt(talk, chat)) == []


@pytest.mark.server
async def test_case_14_what_is_acknowledged_is_what_is_kept():
    """On the wire: the answer names the milliseconds kept, and the item and the prompt hold their words."""
    chat, voice = FakeChat(REPLY, "Well."), FakeVoice()
    async with (
        running(settings("output.lead=10"), engines=fake_engines(chat=chat, voice=voice)) as url,
        client(url) as me,
    ):
        await me.append(QUESTION)
        item = (await me.until("response.done"))[-1]["response"]["output"][0]["id"]
        for asked, told in ((1200, 1200), (99_999, 1200), (0, 0)):
            await me.send("conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=asked)
            answer = (await me.until("conversation.item.truncated"))[-1]
            assert (answer["item_id"], answer["content_index"]) == (item, 0)
            assert answer["audio_end_ms"] == told
            await me.send("conversation.item.retrieve", item_id=item)
            got = (await me.until("conversation.item.retrieved"))[-1]["item"]["content"][0]["transcript"]
            assert got == ("Alpha bravo charlie." if told else "")
        await me.write()
        assert [m.role for m in chat.requests[-1].messages] == ["system", "user", "user"]
        assert not [e for e in me.events if e["type"] == "error"]
