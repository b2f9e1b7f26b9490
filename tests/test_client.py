"""The ruler: microphone and loudspeaker on a given clock, then the client against a small server."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from antiphon.benchmarks.client import (
    FRAME,
    SAMPLE_RATE,
    ClientError,
    Loudspeaker,
    Microphone,
    RealtimeClient,
)
from antiphon.benchmarks.exchange import LEAD_IN, exchange, traces
from antiphon.pipeline.audio import pcm16_to_samples, samples_to_pcm16
from antiphon.pipeline.metrics import TurnTrace


def tone(seconds: float, level: float = 0.5) -> np.ndarray:
    return np.full(round(seconds * SAMPLE_RATE), level, np.float32)


def silence(seconds: float) -> np.ndarray:
    return tone(seconds, 0.0)


# --- microphone -----------------------------------------------------------------------------------------


def test_frames_are_due_when_their_last_sample_is_spoken_and_never_drift() -> None:
    microphone = Microphone(100.0)
    due = []
    for _ in range(10_000):
        due.append(microphone.due)
        microphone.frame()
    assert due[0] == pytest.approx(100.02)
    assert due[-1] == pytest.approx(100.0 + 200.0, abs=1e-6)


def test_a_clip_begins_with_the_next_frame_and_ends_in_silence() -> None:
    microphone = Microphone(0.0)
    microphone.frame()
    clip = microphone.play(tone(0.03))
    assert clip.start == pytest.approx(0.02)
    assert clip.moment(0.01) == pytest.approx(0.03)
    assert clip.end == pytest.approx(0.05)
    first, second, third = (microphone.frame() for _ in range(3))
    assert np.all(first == 0.5)
    assert np.all(second[:240] == 0.5)
    assert not second[240:].any()
    assert not third.any()
    assert len(third) == microphone.frame_samples


def test_clips_follow_one_another_without_a_seam() -> None:
    microphone = Microphone(5.0)
    one, two = microphone.play(tone(0.03)), microphone.play(tone(0.05, 0.25))
    assert two.start == pytest.approx(one.end)
    assert two.offset == pytest.approx(0.03)
    sound = np.concatenate([microphone.frame() for _ in range(4)])
    assert np.array_equal(sound, np.concatenate([tone(0.03), tone(0.05, 0.25)]))


# --- loudspeaker ----------------------------------------------------------------------------------------


def test_deltas_that_come_early_play_one_after_the_other() -> None:
    speaker = Loudspeaker()
    for arrived in (10.0, 10.01, 10.02):
        speaker.add(tone(0.1), arrived)
    assert (speaker.started, speaker.heard, speaker.underruns) == (10.0, 10.0, 0)
    assert speaker.ends == pytest.approx(10.3)
    assert len(speaker.samples) == 7200


def test_silence_at_the_head_of_the_reply_counts() -> None:
    speaker = Loudspeaker()
    speaker.add(silence(0.3), 10.0)
    assert speaker.heard is None
    speaker.add(np.concatenate([silence(0.05), tone(0.1)]), 10.05)
    assert speaker.heard == pytest.approx(10.35)


def test_sound_below_fifty_decibels_is_not_heard() -> None:
    speaker = Loudspeaker()
    speaker.add(tone(0.1, 10 ** (-51 / 20)), 0.0)
    assert speaker.heard is None
    speaker.add(tone(0.1, -(10 ** (-49 / 20))), 0.0)
    assert speaker.heard == pytest.approx(0.1)


def test_a_late_delta_is_an_underrun_and_delays_what_follows() -> None:
    speaker = Loudspeaker()
    speaker.add(silence(0.1), 10.0)
    speaker.add(tone(0.1), 10.25)
    assert (speaker.underruns, speaker.gap) == (1, pytest.approx(0.15))
    assert speaker.heard == pytest.approx(10.25)
    speaker.add(tone(0.1), 10.26)
    assert speaker.underruns == 1
    assert speaker.ends == pytest.approx(10.45)


def test_an_empty_reply_is_an_empty_array() -> None:
    assert Loudspeaker().samples.shape == (0,)


# --- the client against a small server --------------------------------------------------------------------


class Parrot:
    """Answers a session update, and after `hear` appended frames gives one whole turn and a reply."""

    def __init__(
        self,
        *,
        hear: int = 3,
        greet: bool = True,
        hang_up: bool = False,
        words: str = " hello ",
        stopped_ms: int = 60,
        traces: Sequence[TurnTrace] = (),
    ) -> None:
        self.hear, self.greet, self.hang_up = hear, greet, hang_up
        self.words, self.stopped_ms = words, stopped_ms
        self.traces = traces
        self.audio = b""
        self.asked: list[str] = []

    def http(self, connection: ServerConnection, request: Request) -> Response | None:
        if not request.path.startswith("/debug/"):
            return None
        self.asked.append(request.path)
        body = {"traces": [trace.summary(texts=False) for trace in self.traces]} if self.traces else {}
        return connection.respond(200, json.dumps(body))

    async def __call__(self, socket: ServerConnection) -> None:
        async def say(type: str, **fields: Any) -> None:
            await socket.send(json.dumps({"type": type, "event_id": "e", **fields}))

        if self.greet:
            await say("session.created", session={"id": "sess_1", "type": "realtime"})
        appended = 0
        async for message in socket:
            event = json.loads(message)
            if event["type"] == "session.update":
                if event["session"].get("voice") == "nobody":
                    await say("error", error={"type": "invalid_request_error", "message": "no such voice"})
                else:
                    await say("session.updated", session=event["session"])
            if event["type"] != "input_audio_buffer.append":
                continue
            self.audio += base64.b64decode(event["audio"])
            appended += 1
            if appended == self.hear:
                if self.hang_up:
                    await socket.close(1011, "out of breath")
                    return
                await self._turn(say)

    async def _turn(self, say: Any) -> None:
        await say("input_audio_buffer.speech_stopped", item_id="i1", audio_end_ms=self.stopped_ms)
        await say("input_audio_buffer.committed", item_id="i1", previous_item_id=None)
        completed = "conversation.item.input_audio_transcription.completed"
        await say(completed, item_id="i1", content_index=0, transcript=self.words, usage={})
        if not self.words:
            return
        await say("response.created", response={"id": "r1"})
        for text, samples in (("Good ", silence(0.1)), ("day.", tone(0.1))):
            audio = base64.b64encode(samples_to_pcm16(samples)).decode()
            await say("response.output_audio_transcript.delta", response_id="r1", delta=text)
            await say("response.output_audio.delta", response_id="r1", delta=audio)
        await say("response.done", response={"id": "r1", "status": "completed"})


@asynccontextmanager
async def listening(parrot: Parrot) -> AsyncIterator[str]:
    async with serve(parrot, "127.0.0.1", 0, process_request=parrot.http) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_turn_is_put_together_from_its_events() -> None:
    parrot = Parrot()
    async with listening(parrot) as url, RealtimeClient(url) as client:
        assert client.session_id == "sess_1"
        assert (await client.configure(instructions="be brief"))["instructions"] == "be brief"
        clip = client.play(tone(0.04))
        reply = await client.reply_after(clip.start, timeout=5)
        assert reply is not None
        await client.done(reply, timeout=5)
        assert (reply.transcript, reply.status) == ("Good day.", "completed")
        assert [(turn.item_id, turn.transcript) for turn in client.turns.values()] == [("i1", "hello")]
        assert reply.sound.heard is not None
        assert reply.sound.started is not None
        assert reply.sound.heard >= reply.sound.started + 0.1 - 1e-6
        assert len(reply.sound.samples) == 4800
        assert reply.created >= clip.start + 0.06, "the third frame cannot leave before it is spoken"
    sound = pcm16_to_samples(parrot.audio)
    assert np.allclose(sound[:960], 0.5, atol=1e-4)
    assert not sound[960:].any(), "behind the clip the microphone records silence"


async def test_a_refused_update_says_why() -> None:
    async with listening(Parrot()) as url, RealtimeClient(url) as client:
        with pytest.raises(ClientError, match="no such voice"):
            await client.configure(voice="nobody")


async def test_no_reply_is_none_and_not_a_hang() -> None:
    async with listening(Parrot(hear=10_000)) as url, RealtimeClient(url) as client:
        clip = client.play(tone(0.02))
        assert await client.reply_after(clip.end, timeout=0.1) is None


async def test_a_connection_that_breaks_ends_the_wait_with_its_reason() -> None:
    async with listening(Parrot(hang_up=True)) as url, RealtimeClient(url) as client:
        clip = client.play(tone(0.02))
        with pytest.raises(ClientError, match="out of breath"):
            await client.reply_after(clip.start, timeout=5)


async def test_nobody_there_and_nobody_talking() -> None:
    async with listening(Parrot(greet=False)) as url:
        with pytest.raises(ClientError, match=r"no session\.created within"):
            async with RealtimeClient(url, timeout=0.1):
                pass
    with pytest.raises(ClientError, match="cannot connect"):
        async with RealtimeClient(url, timeout=1):
            pass


# --- an exchange: end of speech, reply, stages ------------------------------------------------------------


def question(seconds: float) -> np.ndarray:
    """Noise that stands out, with silence before and after it."""
    sound = np.random.default_rng(0).normal(0, 0.1, round(seconds * SAMPLE_RATE)).astype(np.float32)
    return np.concatenate([silence(0.1), sound, silence(0.2)])


async def test_an_exchange_counts_from_the_last_word_and_moves_the_stages_there() -> None:
    trace = TurnTrace("sess_1", 1, 1, gate_open=500.0, first_token=-20.0, launched=2, used=1, discarded=1)
    samples = question(0.1)
    last = round((LEAD_IN + 0.1 + 0.1) / FRAME)
    parrot = Parrot(hear=last + 5, stopped_ms=round(last * FRAME * 1000) + 30, traces=[trace])
    async with listening(parrot) as url:
        said = await exchange(url, samples, limit=5, whole=True)
    assert parrot.asked == ["/debug/traces?session=sess_1"]
    assert said.problem is None
    assert (said.transcript, said.reply, said.false_ends) == ("hello", "Good day.", 0)
    assert said.v2v_ms is not None
    assert said.v2v_ms > 5 * FRAME * 1000, "five frames of silence had to be spoken first"
    assert said.stages_ms["gate_open"] == pytest.approx(530.0, abs=11)
    assert said.stages_ms["first_token"] == pytest.approx(10.0, abs=11)
    assert said.stages_ms["first_audio"] is None
    assert said.speculation == {"launched": 2, "used": 1, "discarded": 1, "wasted_ms": 0}
    assert len(said.sound) == 4800


@pytest.mark.parametrize(
    ("parrot", "samples", "problem"),
    [
        (Parrot(), silence(0.2), "the recording holds no speech"),
        (Parrot(hear=10_000), question(0.1), "the service heard no speech"),
        (Parrot(hear=3), question(0.6), "answered before the recording's last word"),
        (Parrot(hear=42, words=""), question(0.1), "no words in it"),
    ],
)
async def test_an_exchange_without_a_reply_says_why(
    parrot: Parrot, samples: np.ndarray, problem: str
) -> None:
    async with listening(parrot) as url:
        said = await exchange(url, samples, limit=0.2, whole=True)
    assert said.v2v_ms is None
    assert problem in str(said.problem)


async def test_traces_of_a_server_that_shows_none_are_empty() -> None:
    async with listening(Parrot()) as url:
        assert await traces(url + "/v1/realtime", "sess_1") == []
    assert await traces(url, "sess_1") == []
