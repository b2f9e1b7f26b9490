"""Cases 1 to 7 and 47: what is still heard after an interruption (docs/cases.md says where each is held)."""

import asyncio
import base64
from typing import Any

import numpy as np
import pytest
from conftest import DATA
from fakes import FakeChat, fake_engines, tone
from test_session import SPEECH, Hears, of, silence, talking
from test_websocket import QUESTION, RATE, Client, client, kinds, settings

from antiphon.asr.formats import decode_file
from antiphon.pipeline.audio import pcm16_to_samples
from antiphon.pipeline.events import CancelResponse, OutputAudio, ResponseDone, ResponseStarted, TurnStarted
from antiphon.pipeline.settings import load
from antiphon.transport.server import running

LONG = "This is a long answer to a short question. " * 10
AUDIO = "response.output_audio.delta"


def audio_of(events: list[dict[str, Any]], response_id: str) -> list[dict[str, Any]]:
    return [e for e in events if e["type"] == AUDIO and e["response_id"] == response_id]


async def everything(me: Client) -> list[dict[str, Any]]:
    """All that is sent up to now: an answer comes after what was there before it."""
    await me.send("conversation.item.retrieve", item_id="none")
    return await me.until("error")


@pytest.mark.server
@pytest.mark.parametrize("lead", [0.2, 10.0])
async def test_case_02_no_sample_of_the_old_reply_after_the_interruption(lead: float):
    chat = FakeChat(LONG, "Yes?")
    engines = fake_engines(Hears("no stop that"), chat=chat)
    async with running(settings(f"output.lead={lead}"), engines=engines) as url, client(url) as me:
        await me.append(QUESTION)
        old = (await me.until(AUDIO))[-1]["response_id"]
        await me.append(np.concatenate([tone(0.6, RATE), np.zeros(RATE, np.float32)]))
        seen = await me.until("input_audio_buffer.speech_started")
        after = await me.until("response.done")
        assert after[-1]["response"]["id"] == old
        assert after[-1]["response"]["status_details"]["reason"] == "turn_detected"
        after += await me.until("response.done")
        after += await everything(me)
        assert not audio_of(after, old)
        assert audio_of(after, after[-1].get("response_id", "")) == []
        new = {e["response_id"] for e in after if e["type"] == AUDIO}
        assert len(new) == 1
        assert old not in new
        assert audio_of(seen, old) or lead < 1


@pytest.mark.parametrize("moment", range(8))
async def test_case_03_what_was_cut_before_its_first_audio_never_comes_with_the_next_reply(moment: int):
    chat = FakeChat("Alpha alpha alpha. " * 6, "Beta beta.")
    async with talking(chat=chat) as talk:
        await talk.hear(silence(0.3), SPEECH, silence(0.6))
        first = (await talk.until(ResponseStarted))[-1].response.id
        for _ in range(moment):
            await asyncio.sleep(0)
        await talk.do(CancelResponse())
        await talk.until(ResponseDone)
        await talk.hear(silence(0.3), SPEECH, silence(0.7))
        later = await talk.until(ResponseDone)
    assert {o.response_id for o in of(later, OutputAudio)} == {later[-1].response.id}
    assert later[-1].response.id != first
    assert later[-1].response.output[0].parts[0].text == "Beta beta."


async def test_case_04_no_more_than_the_lead_is_ahead_of_the_listener():
    """Whoever is told to stop has at most the lead, and the piece that passes it, still to play."""
    lead, piece = 0.3, 0.1
    now = asyncio.get_running_loop().time
    async with talking(chat=FakeChat(LONG), settings=[f"output.lead={lead}"]) as talk:
        await talk.hear(silence(0.3), SPEECH, silence(0.7))
        sent, began = 0.0, None
        while sent < 2.0:
            samples = of(await talk.until(OutputAudio), OutputAudio)[-1].samples
            began = began or now()
            sent += len(samples) / 24_000
            assert sent - (now() - began) <= lead + 2 * piece


@pytest.mark.server
async def test_case_07_a_slow_client_interrupts_as_quickly_as_any():
    """Its socket takes nothing, yet what it says is heard: the reply ends in the engines, and what waited for
    it is gone."""
    chat = FakeChat(LONG * 20, "Yes?")
    big = {"id": "big", "type": "message", "role": "user"}
    engines = fake_engines(Hears("no stop that"), chat=chat)
    traces: list[str] = []
    async with (
        running(settings("output.lead=10"), engines=engines, record=lambda t: traces.append(t.status)) as url,
        client(url, max_queue=1, ping_interval=None) as me,
    ):
        await me.send(
            "conversation.item.create",
            item={**big, "content": [{"type": "input_text", "text": "x" * 100_000}]},
        )
        await me.append(QUESTION)
        old = (await me.until("response.created"))[-1]["response"]["id"]
        for _ in range(300):  # more than sockets hold
            await me.send("conversation.item.retrieve", item_id="big")
        await asyncio.sleep(0.5)  # now it does
        await me.send("no.such.event")
        await me.append(np.concatenate([tone(0.6, RATE), np.zeros(RATE, np.float32)]))
        async with asyncio.timeout(15):  # before server.send_timeout lets go of the client
            while not traces:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert traces[0] == "cancelled"
        seen = await me.until("input_audio_buffer.speech_started")
        after = await me.until("response.done")
        assert not audio_of(after, old)
        assert [e["error"]["code"] for e in [*seen, *after] if e["type"] == "error"]


@pytest.mark.parametrize("late", [0.0, 0.4])
async def test_case_47_the_end_of_a_reply_come_back_is_no_turn(late: float):
    """All of it has been sent, half a second of it is still to be played, and heard by the microphone."""
    chat = FakeChat("It is noon and the sun stands high over the city.", "I agree.")
    recognizer = Hears("high over the city")
    async with talking(recognizer=recognizer, chat=chat, settings=["output.lead=0.5"]) as talk:
        await talk.hear(silence(0.3), SPEECH, silence(0.7))
        await talk.until(ResponseDone)
        await asyncio.sleep(late)
        await talk.hear(SPEECH[:8000], silence(1.0))
        await asyncio.sleep(0.1)
        assert len(talk.session.conversation) == 2
        assert len(chat.requests) == 1


async def test_case_47_an_answer_to_the_end_of_a_reply_is_a_turn():
    chat = FakeChat("It is noon and the sun stands high over the city.", "I agree.")
    recognizer = Hears("what a lovely day")
    async with talking(recognizer=recognizer, chat=chat, settings=["output.lead=0.5"]) as talk:
        await talk.hear(silence(0.3), SPEECH, silence(0.7))
        await talk.until(ResponseDone)
        await talk.hear(SPEECH[:8000], silence(1.0))
        seen = await talk.until(ResponseDone)
    assert len(of(seen, TurnStarted)) == 1
    assert seen[-1].response.output[0].parts[0].text == "I agree."


@pytest.mark.server
@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("decibels", [-15, -20, -25])
async def test_case_47_its_own_voice_in_the_microphone_is_no_interruption(decibels: int):
    """A loudspeaker beside the microphone: what is played comes back 0.2 s later, over a little noise."""
    rng = np.random.default_rng(1)
    now = asyncio.get_running_loop().time
    step = RATE // 10
    async with running(load(overrides=["llm.max_tokens=60"])) as url, client(url, max_queue=None) as me:
        await me.until("session.created")
        played = np.zeros(0, np.float32)
        started: float | None = None

        async def listen() -> None:
            nonlocal played, started
            while True:
                event = await me.next()
                if event["type"] == AUDIO:
                    samples = pcm16_to_samples(base64.b64decode(event["delta"]))
                    started = started or now()
                    silent = max(0, round((now() - started) * RATE) - len(played))
                    played = np.concatenate([played, np.zeros(silent, np.float32), samples])

        listening = asyncio.create_task(listen())
        question = decode_file(DATA / "question.wav", RATE)
        microphone = np.concatenate([question, np.zeros(60 * RATE, np.float32)])
        microphone += rng.normal(0, 1e-4, len(microphone)).astype(np.float32)
        begin, quiet = now(), 0
        for at in range(0, len(microphone), step):
            sound = microphone[at : at + step].copy()
            if started is not None:
                heard = round((now() - started - 0.2) * RATE)
                piece = played[max(0, heard) : max(0, heard + step)]
                sound[: len(piece)] += 10 ** (decibels / 20) * piece
                quiet = 0 if len(piece) else quiet + 1
            if quiet > 30:
                break
            await me.append(sound)
            await asyncio.sleep(max(0.0, begin + (at + step) / RATE - now()))
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    assert len(played) > 3 * RATE
    done = [e["response"]["status"] for e in me.events if e["type"] == "response.done"]
    assert len(done) == 1
    assert done[0] != "cancelled"
    assert kinds(me.events).count("input_audio_buffer.speech_started") == 1
