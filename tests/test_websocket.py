"""The real server and real websocket clients, polite and hostile, around fake engines."""

import asyncio
import base64
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fakes import FakeChat, FakeRecognizer, FakeVoice, fake_engines, tone
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from antiphon.pipeline.audio import samples_to_pcm16
from antiphon.pipeline.errors import SetupError
from antiphon.pipeline.settings import Settings, load
from antiphon.transport import server
from antiphon.transport.keys import WatchedKeys
from antiphon.transport.server import running

pytestmark = pytest.mark.server

RATE = 24_000
PATIENCE = 30.0
"""Seconds after which a wait is a failure, on the slowest machine."""


def settings(*overrides: str) -> Settings:
    """Everybody who has room is let in: what a server of fakes could serve in time is not known to it."""
    common = ["turn.endpointing=silence", "turn.silence=0.3", "slo.voice_to_voice_ms=600000"]
    return load(overrides=[*common, *overrides], environ={})


class Client:
    """A websocket client that keeps every event."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.events: list[dict[str, Any]] = []

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def append(self, samples: np.ndarray) -> None:
        await self.send(
            "input_audio_buffer.append", audio=base64.b64encode(samples_to_pcm16(samples)).decode()
        )

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            self.events.append(json.loads(await self.socket.recv()))
        return self.events[-1]

    async def until(self, kind: str) -> list[dict[str, Any]]:
        seen = [await self.next()]
        while seen[-1]["type"] != kind:
            seen.append(await self.next())
        return seen

    async def closed(self) -> int:
        """The close code that the server sent, -1 for none; events before it are kept."""
        try:
            while True:
                await self.next()
        except ConnectionClosed as closed:
            return -1 if closed.rcvd is None else closed.rcvd.code

    async def write(self, text: str = "What time is it?") -> list[dict[str, Any]]:
        """A whole text turn."""
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
        await self.send("conversation.item.create", item=item)
        await self.send("response.create", response={"output_modalities": ["text"]})
        return await self.until("response.done")


@asynccontextmanager
async def client(url: str, query: str = "?model=gpt-realtime", **options: Any) -> AsyncIterator[Client]:
    async with connect(f"{url}/v1/realtime{query}", compression=None, max_size=None, **options) as socket:
        yield Client(socket)


async def get(url: str, path: str, method: str = "GET") -> httpx.Response:
    async with httpx.AsyncClient() as http:
        return await http.request(method, url.replace("ws", "http", 1) + path)


async def open_sessions(url: str) -> float:
    lines = (await get(url, "/metrics")).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("antiphon_sessions "))


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask again until it holds; a server in another task or process has no event to wait for."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def until_sessions(url: str, count: int) -> None:
    async def so_many() -> bool:
        return await open_sessions(url) == count

    await until(so_many)


async def until_draining(url: str) -> None:
    async def draining() -> bool:
        return (await get(url, "/health")).status_code == 503

    await until(draining)


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


QUESTION = np.concatenate([tone(0.8, RATE), np.zeros(RATE, np.float32)])

# --- polite clients -------------------------------------------------------------------------------------


async def test_the_handshake_selects_realtime_only_if_it_was_offered():
    async with running(settings(), engines=fake_engines()) as url:
        async with client(url, subprotocols=["realtime", "openai-insecure-api-key.x"]) as browser:
            assert browser.socket.subprotocol == "realtime"
            assert (await browser.next())["type"] == "session.created"
        async with client(url) as plain:
            assert plain.socket.subprotocol is None
            assert plain.socket.response is not None
            assert plain.socket.response.headers["x-request-id"].startswith("req_")
            assert (await plain.next())["session"]["model"] == "gpt-realtime"


async def test_a_spoken_question_gets_a_spoken_answer():
    recognizer, chat, voice = FakeRecognizer("what time is it"), FakeChat("It is noon."), FakeVoice()
    async with running(settings(), engines=fake_engines(recognizer, chat, voice)) as url, client(url) as me:
        await me.until("session.created")
        await me.append(QUESTION)
        events = await me.until("response.done")
    order = [k for k in dict.fromkeys(kinds(events)) if "transcription" not in k]
    assert order == [
        "input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed", "conversation.item.added", "conversation.item.done",
        "response.created", "response.output_item.added", "response.content_part.added",
        "response.output_audio_transcript.delta", "response.output_audio.delta", "response.output_audio.done",
        "response.output_audio_transcript.done", "response.content_part.done", "response.output_item.done",
        "response.done",
    ]  # fmt: skip
    completed = next(e for e in events if e["type"].endswith("transcription.completed"))
    assert completed["transcript"] == "what time is it"
    assert chat.requests[-1].messages[-1].content == "what time is it"
    sent = b"".join(
        base64.b64decode(e["delta"]) for e in events if e["type"] == "response.output_audio.delta"
    )
    produced = b"".join(samples_to_pcm16(tone(0.05 * len(text), RATE)) for text in voice.spoken)
    assert sent == produced
    assert events[-1]["response"]["output"][0]["content"][0]["transcript"] == "It is noon."


async def test_speaking_over_the_reply_cancels_it():
    chat = FakeChat("This is a long answer " * 20)
    async with running(settings(), engines=fake_engines(chat=chat)) as url, client(url) as me:
        await me.append(QUESTION)
        await me.until("response.output_audio.delta")
        await me.append(tone(0.6, RATE))
        events = await me.until("response.done")
        assert events[-1]["response"]["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
        started = kinds(events).index("input_audio_buffer.speech_started")
        assert "response.output_audio.delta" not in kinds(events[started:])
        await me.append(np.zeros(RATE, np.float32))
        assert (await me.until("response.created"))[-1]["response"]["status"] == "in_progress"


async def test_a_manual_turn():
    async with running(settings(), engines=fake_engines()) as url, client(url) as me:
        await me.send("session.update", session={"audio": {"input": {"turn_detection": None}}})
        await me.until("session.updated")
        await me.append(tone(0.5, RATE))
        await me.send("input_audio_buffer.commit")
        await me.until("conversation.item.input_audio_transcription.completed")
        await me.send("response.create")
        events = await me.until("response.done")
        assert events[-1]["response"]["status"] == "completed"
        assert "input_audio_buffer.speech_started" not in kinds(me.events)


async def test_a_turn_is_traced_but_what_was_said_is_not(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    kept = []
    recognizer = FakeRecognizer("a secret")
    async with (
        running(settings(), engines=fake_engines(recognizer), record=kept.append) as url,
        client(url) as me,
    ):
        await me.append(QUESTION)
        await me.until("response.done")
        session = me.events[0]["session"]["id"]
        traces = (await get(url, f"/debug/traces?session={session}")).json()["traces"]
        metrics = (await get(url, "/metrics")).text
    assert [trace.session for trace in kept] == [session]
    assert traces == [kept[0].summary(texts=False)]
    assert traces[0]["stages_ms"]["first_audio_sent"] is not None
    assert "antiphon_turns_total 1.0" in metrics
    assert 'antiphon_responses_total{status="completed"} 1.0' in metrics
    assert 'antiphon_stage_seconds_count{stage="first_audio_sent"} 1.0' in metrics
    (line,) = [r.getMessage() for r in caplog.records if r.name == "antiphon.turn"]
    assert json.loads(line.removeprefix("turn "))["words"] == 2
    assert "secret" not in caplog.text


# --- HTTP -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "unknown_url"),
        ("POST", "/health", 405, "method_not_allowed"),
        ("DELETE", "/metrics", 405, "method_not_allowed"),
        ("GET", "/v1/realtime", 426, None),
    ],
)
async def test_http_errors_are_in_the_envelope_of_the_api(
    method: str, path: str, status: int, code: str | None
):
    async with running(settings(), engines=fake_engines()) as url:
        answer = await get(url, path, method)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "code", "param"}
    assert (error["type"], error["code"]) == ("invalid_request_error", code)
    assert answer.headers["x-request-id"].startswith("req_")


async def test_a_websocket_at_another_path_is_refused_in_the_envelope_too():
    async with running(settings(), engines=fake_engines()) as url:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"{url}/v1/realtimes")
    assert refused.value.response.status_code == 404
    assert json.loads(refused.value.response.body)["error"]["code"] == "unknown_url"
    assert refused.value.response.headers["x-request-id"].startswith("req_")


async def test_a_fault_of_ours_shows_no_trace(monkeypatch: pytest.MonkeyPatch):
    def fail(self: object) -> bytes:
        raise RuntimeError("inner detail")

    monkeypatch.setattr("antiphon.pipeline.metrics.Metrics.exposition", fail)
    async with running(settings(), engines=fake_engines()) as url:
        answer = await get(url, "/metrics")
        assert (await get(url, "/health")).json() == {"status": "ok"}
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert "inner detail" not in answer.text
    assert answer.headers["x-request-id"].startswith("req_")


# --- bad input ------------------------------------------------------------------------------------------

BAD = {
    "invalid_json": "{",
    "binary_frame": b"\x00\x01\x02",
    "missing_required_parameter": "{}",
    "invalid_value": '{"type": "input_audio_buffer.append_all"}',
    "invalid_type": '{"type": "input_audio_buffer.append", "audio": 7}',
    "invalid_base64": '{"type": "input_audio_buffer.append", "audio": "=*="}',
    "invalid_audio": '{"type": "input_audio_buffer.append", "audio": "AAAA"}',
    "too_large": json.dumps({"type": "input_audio_buffer.append", "audio": "A" * (27 * 2**20)}),
    "unsupported": '{"type": "output_audio_buffer.clear"}',
    "input_audio_buffer_commit_empty": '{"type": "input_audio_buffer.commit"}',
    "response_cancel_not_active": '{"type": "response.cancel"}',
}


async def test_every_bad_message_is_an_error_event_and_the_session_goes_on():
    async with running(settings(), engines=fake_engines()) as url, client(url) as me:
        await me.until("session.created")
        for code, message in BAD.items():
            await me.socket.send(message)
            event = await me.next()
            assert (event["type"], event["error"]["code"]) == ("error", code)
        events = await me.write()
        assert events[-1]["response"]["status"] == "completed"
        metrics = (await get(url, "/metrics")).text
        assert all(f'antiphon_errors_total{{code="{code}"}} 1.0' in metrics for code in BAD)


async def test_an_error_carries_the_event_id_of_its_cause():
    async with running(settings(), engines=fake_engines()) as url, client(url) as me:
        await me.send("conversation.item.retrieve", item_id="nobody", event_id="mine")
        (*_, event) = await me.until("error")
        assert event["error"]["event_id"] == "mine"


async def test_a_message_over_the_limit_closes_with_1009():
    small = settings("server.max_message_bytes=65536", "session.max_append_bytes=1024")
    async with running(small, engines=fake_engines()) as url:
        async with client(url) as me:
            await me.socket.send("x" * 70_000)
            assert await me.closed() == 1009
        await until_sessions(url, 0)


async def test_a_long_append_is_all_heard():
    recognizer = FakeRecognizer()
    async with running(settings(), engines=fake_engines(recognizer)) as url, client(url) as me:
        await me.append(np.concatenate([np.zeros(10 * RATE, np.float32), QUESTION]))
        (*_, stopped) = await me.until("input_audio_buffer.speech_stopped")
        assert abs(stopped["audio_end_ms"] - 10_800) < 100


# --- limits and hostile clients -------------------------------------------------------------------------


async def test_one_session_too_many_is_refused_and_admitted_later():
    async with running(settings("server.max_sessions=1"), engines=fake_engines()) as url:
        async with client(url) as first:
            await first.until("session.created")
            async with client(url) as second:
                assert (await second.next())["error"]["code"] == "session_limit_reached"
                assert await second.closed() == 1013
            assert (await first.write())[-1]["response"]["status"] == "completed"
        await until_sessions(url, 0)
        async with client(url) as third:
            assert (await third.next())["type"] == "session.created"


@pytest.mark.parametrize("detection", [{"type": "server_vad", "silence_duration_ms": 300}, None])
async def test_a_transcription_session_writes_down_and_never_answers(detection: dict[str, Any] | None):
    chat = FakeChat()
    async with (
        running(settings(), engines=fake_engines(chat=chat)) as url,
        client(url, "?intent=transcription") as me,
    ):
        assert (await me.next())["session"]["type"] == "transcription"
        heard = {"input": {"turn_detection": detection}}
        await me.send("session.update", session={"type": "transcription", "audio": heard})
        assert (await me.until("session.updated"))[-1]["session"]["audio"]["input"]["turn_detection"] in (
            None,
            {
                "type": "server_vad",
                "threshold": 0.5,
                "prefix_padding_ms": 300,
                "silence_duration_ms": 300,
                "create_response": True,
                "interrupt_response": True,
            },
        )
        for _ in range(2):
            await me.append(np.concatenate([tone(1.0, RATE), np.zeros(RATE, np.float32)]))
            if detection is None:
                await me.send("input_audio_buffer.commit")
            seen = await me.until("conversation.item.input_audio_transcription.completed")
            assert seen[-1]["transcript"] == "what time is it"
        await me.send("response.create", event_id="mine")
        error = (await me.until("error"))[-1]["error"]
        assert (error["event_id"], error["param"]) == ("mine", "type")
    assert not [kind for kind in kinds(me.events) if kind.startswith("response.")]
    assert chat.requests == []


async def test_a_session_that_would_make_all_answers_late_is_refused_with_a_hint():
    async with running(settings("slo.voice_to_voice_ms=100"), engines=fake_engines()) as url:
        async with client(url) as first:
            assert (await first.next())["type"] == "session.created"  # the first always may
            async with client(url) as second:
                error = (await second.next())["error"]
                assert (error["type"], error["code"]) == ("server_error", "overloaded")
                assert "slo.voice_to_voice_ms" in error["message"]
                assert await second.closed() == 1013
                assert second.socket.close_reason.startswith("Retry-After: ")
            assert (await first.write())[-1]["response"]["status"] == "completed"
            assert (await get(url, "/health")).status_code == 200
            metrics = (await get(url, "/metrics")).text
        await until_sessions(url, 0)
    assert 'antiphon_sessions_refused_total{code="overloaded"} 1.0' in metrics
    for name in (
        "predicted_voice_to_voice_seconds",
        "actual_voice_to_voice_seconds",
        "event_loop_lag_seconds",
    ):
        assert f"\nantiphon_{name} " in metrics
    assert 'antiphon_queue_depth{model="asr"} 0.0' in metrics


async def test_a_session_ends_when_its_time_is_over():
    async with running(settings("session.max_seconds=1"), engines=fake_engines()) as url:
        async with client(url) as me:
            assert await me.closed() == 1001
        assert me.events[0]["session"]["expires_at"] > 1_700_000_000
        assert me.events[-1]["error"]["code"] == "session_expired"
        await until_sessions(url, 0)


async def test_a_client_that_never_reads_is_let_go():
    text = "x" * 100_000
    async with (
        running(settings("server.send_timeout=1"), engines=fake_engines()) as url,
        client(url, max_queue=1, close_timeout=0.1, ping_interval=None) as me,
    ):
        item = {
            "id": "big", "type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]
        }  # fmt: skip
        await me.send("conversation.item.create", item=item)
        await until_sessions(url, 1)
        for _ in range(300):
            await me.send("conversation.item.retrieve", item_id="big")
        await until_sessions(url, 0)
        me.socket.transport.abort()


async def test_a_client_that_vanishes_mid_reply_frees_its_engines():
    chat = FakeChat("One two three four. " * 50)
    chat.hold.clear()
    async with running(settings(), engines=fake_engines(chat=chat)) as url:
        async with client(url) as me:
            await me.append(QUESTION)
            await me.until("response.created")
            assert chat.active == 1
            me.socket.transport.abort()
            await until_sessions(url, 0)
        assert chat.active == 0


async def test_a_client_whose_host_is_gone_is_found_by_pings(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "PING_INTERVAL", 0.1)
    monkeypatch.setattr(server, "PING_TIMEOUT", 0.2)
    async with running(settings(), engines=fake_engines()) as url:
        host, port = url.removeprefix("ws://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"GET /v1/realtime HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        assert b"101" in await reader.readline()
        await until_sessions(url, 1)
        await until_sessions(url, 0)
        writer.close()


async def test_a_failing_session_says_so_and_the_server_goes_on(monkeypatch: pytest.MonkeyPatch):
    async def fail(self: object) -> None:
        raise RuntimeError("inner detail")

    async with running(settings(), engines=fake_engines()) as url:
        with monkeypatch.context() as broken:
            broken.setattr("antiphon.pipeline.session.Session.run", fail)
            async with client(url) as me:
                assert await me.closed() == 1011
                assert me.events[-1]["error"]["code"] == "internal_error"
                assert "inner detail" not in json.dumps(me.events)
        async with client(url) as me:
            assert (await me.next())["type"] == "session.created"


# --- shutting down --------------------------------------------------------------------------------------


async def test_draining_finishes_the_reply_and_refuses_new_sessions():
    chat = FakeChat("One. Two. Three. Four.")
    chat.hold.clear()
    events: list[dict[str, Any]] = []
    async with client_outliving(chat) as (url, me, stop):
        await me.append(QUESTION)
        events += await me.until("response.created")
        stopping = asyncio.create_task(stop())
        await until_draining(url)
        async with client(url) as late:
            assert (await late.next())["error"]["code"] == "server_draining"
            assert await late.closed() == 1012
        chat.hold.set()
        events += await me.until("response.done")
        assert await me.closed() == 1001
        await stopping
    assert events[-1]["response"]["status"] == "completed"
    text = "".join(e["delta"] for e in events if e["type"] == "response.output_audio_transcript.delta")
    assert text == "One. Two. Three. Four."


@asynccontextmanager
async def client_outliving(chat: FakeChat) -> AsyncIterator[tuple[str, Client, Any]]:
    """A client of a server that `stop()` shuts down."""
    service = running(settings(), engines=fake_engines(chat=chat))
    url = await service.__aenter__()
    async with client(url) as me:
        yield url, me, lambda: service.__aexit__(None, None, None)


async def test_a_taken_port_is_the_operators_to_mend(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SetupError, match=r"server\.port"):
            await server._serve(
                settings(f"server.port={port}"), WatchedKeys(tmp_path / "keys", time.monotonic)
            )


SERVE = """
import asyncio, logging, sys
from antiphon.pipeline.settings import load
from antiphon.transport import server
from fakes import FakeChat, fake_engines
logging.basicConfig(level="INFO", stream=sys.stderr)
server.load_engines = lambda settings: fake_engines(chat=FakeChat(sys.argv[1]))
overrides = ["server.port=0", "turn.endpointing=silence", "turn.silence=0.3", "auth.keys=none"]
sys.exit(server.serve(load(overrides=overrides, environ={})))
"""


@pytest.fixture
async def service(request: pytest.FixtureRequest) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A server process and its URL; the test's `reply` mark is what it answers."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVE, "One. Two. Three. Four. Five. " * 4,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)}, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while b"listening on" not in (line := await process.stderr.readline()):
                assert line, "the server ended before it listened"
        yield process, line.decode().split("listening on ")[1].removesuffix("/v1/realtime\n")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_sigterm_drains_and_exits_with_0(service: tuple[asyncio.subprocess.Process, str]):
    process, url = service
    async with client(url) as me:
        await me.append(QUESTION)
        await me.until("response.created")
        process.send_signal(signal.SIGTERM)
        events = await me.until("response.done")
        assert events[-1]["response"]["status"] == "completed"
        assert await me.closed() == 1001
    async with asyncio.timeout(PATIENCE):
        assert await process.wait() == 0


async def test_a_second_signal_exits_at_once(service: tuple[asyncio.subprocess.Process, str]):
    process, url = service
    async with client(url, close_timeout=0.1) as me:
        await me.append(QUESTION)
        await me.until("response.created")
        process.send_signal(signal.SIGTERM)
        await until_draining(url)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            assert await process.wait() == 128 + signal.SIGTERM


LOADING = """
import asyncio, contextlib, sys
from antiphon.pipeline import logs
from antiphon.pipeline.settings import load
from antiphon.transport import server

@contextlib.asynccontextmanager
async def never(settings):
    print("loading", file=sys.stderr, flush=True)
    await asyncio.sleep(3600)
    yield

server.load_engines = never
settings = load(overrides=["server.port=0", f"auth.keys={sys.argv[1]}/keys"], environ={})
logs.configure(settings.log)
sys.exit(server.serve(settings))
"""


async def test_a_signal_while_the_models_load_stops_the_server(tmp_path: Path):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LOADING, str(tmp_path), stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE):
        while (line := await process.stderr.readline()) != b"loading\n":
            assert line, "the server ended before it loaded"
        process.send_signal(signal.SIGTERM)
        said = (await process.stderr.read()).decode()
        assert await process.wait() == 0
    assert "SIGTERM while loading" in said
    assert said.rstrip().endswith("stopped")
