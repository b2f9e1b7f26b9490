"""Coming back to a conversation: what is kept to be told again, and real sockets that break."""

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from fakes import FakeChat, FakeRecognizer, fake_engines, tone
from test_websocket import QUESTION, RATE, Client, client, kinds, open_sessions, settings, until_sessions

from antiphon.pipeline.errors import BadRequest
from antiphon.transport.resumption import Sent
from antiphon.transport.server import running

# --- what is kept -----------------------------------------------------------------------------------------


def five() -> Sent:
    sent = Sent()
    for number in range(5):
        sent.add(f"e{number}", f"text {number}")
    return sent


def test_what_no_socket_took_is_told_again():
    sent = five()
    sent.took()
    sent.took()
    assert sent.after(None) == (["text 2", "text 3", "text 4"], None)
    sent.told_again()
    assert sent.after(None) == ([], None)


def test_the_client_says_what_it_has():
    sent = five()
    sent.told_again()
    assert sent.after("e3") == (["text 4"], None)
    assert sent.after("e4") == ([], None)


def test_only_the_latest_are_kept():
    sent = Sent(most_events=3, most_characters=13)
    for number in range(5):
        sent.add(f"e{number}", f"text {number}")
    assert sent.after("e3") == (["text 4"], None)
    with pytest.raises(BadRequest, match="'after'") as refused:
        sent.after("e2")
    assert refused.value.code == "event_not_kept"
    assert sent.after(None) == (["text 3", "text 4"], None), "more was sent than is kept"


def test_the_sound_of_a_reply_that_was_cut_off_is_not_told_again():
    sent = Sent()
    sent.add("e0", "sound", response_id="r1", audio=("item1", 0.5))
    sent.add("e1", "words", response_id="r1")
    sent.add("e2", "other sound", response_id="r2", audio=("item2", 0.25))
    sent.hush("r1")
    assert sent.after(None) == (["words", "other sound"], None)
    assert sent.after("e0") == (["words", "other sound"], ("item1", 0.5))
    assert sent.after("e2") == ([], ("item2", 0.25)), "the client has a quarter of a second of it"


# --- real sockets -----------------------------------------------------------------------------------------


async def opened(me: Client) -> str:
    """The token that a new connection is given."""
    created = await me.next()
    assert created["type"] == "session.created"
    assert created["resume"]["seconds"] > 0
    return created["resume"]["token"]


@pytest.mark.server
async def test_off_the_wire_for_clients_that_do_not_ask():
    async with running(settings(), engines=fake_engines()) as url:
        async with client(url) as me:
            assert "resume" not in await me.next()
        async with client(url, "?resume=false") as me:
            assert "resume" not in await me.next()
    async with (
        running(settings("session.resume_seconds=0"), engines=fake_engines()) as url,
        client(url, "?resume=true") as me,
    ):
        assert "resume" not in await me.next()


@pytest.mark.server
async def test_the_conversation_goes_on_after_a_lost_connection():
    chat = FakeChat("It is noon.")
    recognizer = FakeRecognizer("what time is it")
    async with running(settings(), engines=fake_engines(recognizer, chat)) as url:
        async with client(url, "?resume=true") as first:
            token = await opened(first)
            session = first.events[0]["session"]["id"]
            await first.append(QUESTION)
            await first.until("response.done")
            first.socket.transport.abort()
            await until_sessions(url, 0)
        async with client(url, f"?resume={token}") as second:
            assert await opened(second) != token
            assert second.events[0]["session"]["id"] == session
            await second.append(QUESTION)
            await second.until("response.done")
    asked = [m.content for m in chat.requests[-1].messages if m.role == "user"]
    assert asked == ["what time is it", "what time is it"]


@pytest.mark.server
@pytest.mark.parametrize("says", [True, False], ids=["after", "without"])
async def test_what_was_not_heard_is_told_again(says: bool):
    """The words and the sound of one reply, over two connections, are those of an unbroken one, none twice."""
    text = "One two three four. Five six seven eight. Nine ten eleven twelve."
    chat = FakeChat(text)
    async with running(settings(), engines=fake_engines(chat=chat)) as url:
        async with client(url, "?resume=true") as first:
            token = await opened(first)
            await first.append(QUESTION)
            await first.until("response.output_audio.delta")
            last = first.events[-1]["event_id"]
            if not says:
                await first.until("response.output_audio.delta")
            first.socket.transport.abort()
            await until_sessions(url, 0)
        async with client(url, f"?resume={token}" + f"&after={last}" * says) as second:
            await opened(second)
            await second.until("response.done")
    had = (
        first.events[: kinds(first.events).index("response.output_audio.delta") + 1] if says else first.events
    )
    whole = [*had, *second.events[1:]]
    ids = [event["event_id"] for event in whole]
    assert len(set(ids)) == len(ids)
    assert second.events[-1]["response"]["output"][0]["content"][0]["transcript"] == text
    if says:
        said = [e["delta"] for e in whole if e["type"] == "response.output_audio_transcript.delta"]
        assert "".join(said) == text
        sound = sum(len(e["delta"]) for e in whole if e["type"] == "response.output_audio.delta")
        expected = len(text.replace(". ", ".")) * 0.05 * RATE * 2 * 4 / 3
        assert sound == pytest.approx(expected, rel=0.02)


@pytest.mark.server
async def test_a_token_is_good_once_and_only_where_it_was_given():
    async with running(settings(), engines=fake_engines()) as url:
        async with client(url, "?resume=true") as first:
            token = await opened(first)
            first.socket.transport.abort()
            await until_sessions(url, 0)
        async with client(url, f"?resume={token}&after=event_unknown") as wrong:
            assert await wrong.closed() == 1008
            assert wrong.events[-1]["error"]["code"] == "event_not_kept"
        async with client(url, f"?resume={token}") as second:
            await opened(second)
            for used in (token, "resume_" + "x" * 43):
                async with client(url, f"?resume={used}") as third:
                    assert await third.closed() == 1008
                    assert third.events[-1]["error"]["code"] == "session_not_resumable"
            assert (await second.write())[-1]["response"]["status"] == "completed"


@pytest.mark.server
async def test_a_new_connection_takes_over_from_one_that_seems_to_stand():
    async with (
        running(settings(), engines=fake_engines()) as url,
        client(url, "?resume=true") as first,
    ):
        token = await opened(first)
        async with client(url, f"?resume={token}") as second:
            await opened(second)
            assert await first.closed() == 1001
            assert (await second.write())[-1]["response"]["status"] == "completed"
            assert await open_sessions(url) == 1


@pytest.mark.server
async def test_a_client_that_says_goodbye_has_ended_its_session():
    async with running(settings(), engines=fake_engines()) as url:
        async with client(url, "?resume=true") as first:
            token = await opened(first)
        await until_sessions(url, 0)
        async with client(url, f"?resume={token}") as second:
            assert await second.closed() == 1008


@pytest.mark.server
async def test_a_session_that_nobody_resumes_ends_and_frees_its_place():
    chat = FakeChat("One two three four. " * 50)
    chat.hold.clear()
    few = settings("session.resume_seconds=0.5", "server.max_sessions=1")
    async with running(few, engines=fake_engines(chat=chat)) as url:
        async with client(url, "?resume=true") as first:
            token = await opened(first)
            await first.append(QUESTION)
            await first.until("response.created")
            first.socket.transport.abort()
            await until_sessions(url, 0)
        async with client(url) as other:
            assert (await other.next())["error"]["code"] == "session_limit_reached"
        async with asyncio.timeout(20):
            while chat.active:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        async with client(url) as other:
            assert (await other.next())["type"] == "session.created"
        async with client(url, f"?resume={token}") as late:
            assert await late.closed() == 1008


@pytest.mark.server
async def test_sessions_that_wait_do_not_hold_up_the_end():
    async with (
        running(settings(), engines=fake_engines()) as url,
        client(url, "?resume=true") as first,
    ):
        await opened(first)
        first.socket.transport.abort()
        await until_sessions(url, 0)


@pytest.mark.server
async def test_a_barge_in_before_the_line_broke_is_not_undone():
    """Of a reply that was cut off, no sound comes after resuming, even to a client that has none of it."""
    chat = FakeChat("This is a long answer " * 20)
    async with running(settings(), engines=fake_engines(chat=chat)) as url:
        async with client(url, "?resume=true") as first:
            token = await opened(first)
            await first.append(QUESTION)
            await first.until("response.created")
            before = first.events[-1]["event_id"]
            await first.until("response.output_audio.delta")
            await first.append(tone(0.6, RATE))
            await first.until("response.done")
            await first.append(np.zeros(100, np.float32))
            first.socket.transport.abort()
            await until_sessions(url, 0)
        async with client(url, f"?resume={token}&after={before}") as second:
            await opened(second)
            again: list[dict[str, Any]] = await second.until("response.done")
    assert again[-1]["response"]["status"] == "cancelled"
    assert "response.output_audio.delta" not in kinds(again)
    assert "resume_" not in json.dumps(again)
