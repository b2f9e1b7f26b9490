"""The HTTP surface of the real server, as clients meet it: who may come in, what is refused, how it stops."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from fakes import FakeChat, FakeVoice, fake_engines, tone
from test_websocket import Client, client, settings
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from antiphon.pipeline.errors import SettingsError
from antiphon.transport import server
from antiphon.transport.keys import change, new_key
from antiphon.transport.server import running

pytestmark = pytest.mark.server

PATIENCE = 30.0
RATE = 24_000


def http(url: str, key: str | None = None) -> httpx.AsyncClient:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return httpx.AsyncClient(base_url=url.replace("ws", "http", 1), headers=headers, timeout=PATIENCE)


def sdk(url: str, key: str = "unused") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=url.replace("ws", "http", 1) + "/v1",
        api_key=key,
        max_retries=0,
        _strict_response_validation=True,
    )


def add(path: Path, name: str = "me", **limits: int) -> str:
    key, secret = new_key(name, 0, **limits)
    change(path, lambda ring: (ring.added(key), None))
    return secret


@asynccontextmanager
async def locked(tmp_path: Path, **limits: int) -> AsyncIterator[tuple[str, str]]:
    """A server with one key, and that key."""
    path = tmp_path / "keys.json"
    secret = add(path, **limits)
    async with running(settings(), engines=fake_engines(), keys=path) as url:
        yield url, secret


def envelope(answer: httpx.Response) -> dict[str, Any]:
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "code", "param"}
    assert answer.headers["x-request-id"].startswith("req_")
    return body["error"]


# --- models, health -------------------------------------------------------------------------------------


async def test_models() -> None:
    async with running(settings("llm.aliases=gpt-x"), engines=fake_engines()) as url, sdk(url) as me:
        names = [model.id async for model in me.models.list()]
        assert names[:3] == ["qwen2.5-coder-0.5b-instruct", "whisper-base", "whisper-tiny.en"]
        assert "gpt-x" in names
        for name in [*names, "whisper-1", "tts-1"]:
            assert (await me.models.retrieve(name)).id == name
        with pytest.raises(openai.NotFoundError) as caught:
            await me.models.retrieve("org/nothing:1")
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
        assert caught.value.request_id


async def test_health_ready_metrics() -> None:
    async with running(settings(), engines=fake_engines()) as url, http(url) as me:
        assert (await me.get("/health")).json() == {"status": "ok"}
        ready = (await me.get("/ready")).json()
        assert ready["status"] == "ready"
        assert "whisper-base" in ready["models"]
        await me.get("/v1/models/nothing")
        await me.get("/nothing")
        text = (await me.get("/metrics")).text
        assert (
            'antiphon_http_requests_total{method="GET",route="/v1/models/{id:path}",status="404"} 1.0' in text
        )
        assert 'antiphon_http_requests_total{method="GET",route="other",status="404"} 1.0' in text
        assert "antiphon_http_requests_in_progress 1.0" in text


# --- errors ---------------------------------------------------------------------------------------------


async def test_a15_every_error_is_in_the_envelope() -> None:
    async with running(settings("http.max_body_bytes=2000"), engines=fake_engines()) as url, http(url) as me:
        document = (await me.get("/openapi.json")).json()
        asked = 0
        for path, methods in document["paths"].items():
            wrong = await me.request("PATCH", path.replace("{", "").replace("}", ""))
            assert wrong.status_code == 405
            assert envelope(wrong)["code"] == "method_not_allowed"
            assert {method.upper() for method in methods} <= set(wrong.headers["allow"].split(", "))
            content = methods.get("post", {}).get("requestBody", {}).get("content", {})
            if "application/json" not in content:
                continue
            asked += 1
            for body, status in ((b"{", 400), (b"", 400), (b"[]", 400), (b'"x"', 400), (b" " * 70_000, 413)):
                answer = await me.post(path, content=body)
                assert answer.status_code == status, (path, body[:9])
                envelope(answer)
            unknown = await me.post(path, json={"model": "nobody", "input": "x", "voice": "heart"})
            assert 400 <= unknown.status_code < 500 or path == "/v1/realtime/client_secrets"
        assert asked >= 4
        assert envelope(await me.get("/v1/nothing"))["code"] == "unknown_url"


async def test_a15_a_fault_of_ours_shows_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(FakeVoice):
        def synthesize(self, *args: Any, **options: Any) -> Any:
            raise RuntimeError("what the user said")

    async with running(settings(), engines=fake_engines(voice=Broken())) as url, http(url) as me:
        answer = await me.post("/v1/audio/speech", json={"model": "tts-1", "voice": "alloy", "input": "Hi."})
    assert answer.status_code == 500
    assert envelope(answer)["code"] == "internal_error"
    assert "what the user said" not in answer.text + caplog.text
    assert "Traceback" not in caplog.text


# --- who may come in ------------------------------------------------------------------------------------

GUARDED = ("/v1/models", "/v1/models/hibari", "/metrics", "/debug/traces", "/v1/audio/voices")
PUBLIC = ("/health", "/ready", "/openapi.json")


async def test_without_keys_everything_is_open() -> None:
    async with running(settings(), engines=fake_engines()) as url, http(url) as me:
        for path in (*GUARDED, *PUBLIC):
            assert (await me.get(path)).status_code == 200
            assert (await me.get(path, headers={"Authorization": "Bearer unused"})).status_code == 200


async def test_with_keys_only_what_supervisors_need_is_open(tmp_path: Path) -> None:
    async with locked(tmp_path) as (url, key), http(url) as me:
        for path in PUBLIC:
            assert (await me.get(path)).status_code == 200
        for path in GUARDED:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"api-key": "wrong"}):
                refused = await me.get(path, headers=headers)
                assert refused.status_code == 401
                assert envelope(refused)["code"] == "invalid_api_key"
                assert refused.headers["www-authenticate"] == "Bearer"
            for headers in ({"Authorization": f"Bearer {key}"}, {"api-key": key}):
                assert (await me.get(path, headers=headers)).status_code == 200
        async with sdk(url, "wrong") as stranger:
            with pytest.raises(openai.AuthenticationError):
                await stranger.models.list()


async def denied(url: str, **options: Any) -> tuple[int, dict[str, Any]]:
    """How a websocket is refused before it is one."""
    with pytest.raises(InvalidStatus) as refused:
        async with connect(f"{url}/v1/realtime?model=x", **options):
            pass
    response = refused.value.response
    assert response.headers["x-request-id"].startswith("req_")
    return response.status_code, json.loads(response.body)["error"]


async def test_a_websocket_needs_the_key_too(tmp_path: Path) -> None:
    async with locked(tmp_path) as (url, key):
        for options in (
            {},
            {"additional_headers": {"Authorization": "Bearer wrong"}},
            {"subprotocols": ["realtime"]},
            {"subprotocols": ["realtime", "openai-insecure-api-key.wrong"]},
        ):
            status, error = await denied(url, **options)
            assert (status, error["code"]) == (401, "invalid_api_key")
        for options in (
            {"additional_headers": {"Authorization": f"Bearer {key}"}},
            {"additional_headers": {"api-key": key}},
            {"subprotocols": ["realtime", f"openai-insecure-api-key.{key}"]},
        ):
            async with client(url, **options) as me:
                assert (await me.next())["type"] == "session.created"
                assert me.socket.subprotocol == ("realtime" if "subprotocols" in options else None)


async def test_a_page_that_may_not_ask_gets_no_websocket() -> None:
    allowed = settings("http.cors_origins=https://mine.example")
    async with running(allowed, engines=fake_engines()) as url:
        status, error = await denied(url, origin="https://other.example")
        assert (status, error["code"]) == (403, "forbidden")
        for origin in ("https://mine.example", None):  # what is no browser has none
            async with client(url, origin=origin) as me:
                assert (await me.next())["type"] == "session.created"


async def test_a_key_that_is_added_opens_and_one_that_is_revoked_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.transport.keys.INTERVAL", 0.0)
    async with locked(tmp_path) as (url, key), http(url) as me:

        async def status(key: str) -> int:
            return (await me.get("/v1/models", headers={"api-key": key})).status_code

        new = add(tmp_path / "keys.json", "new")
        assert await status(new) == 200
        change(tmp_path / "keys.json", lambda ring: ring.revoked("me", 1))
        assert await status(key) == 401
        assert await status(new) == 200


def test_without_a_key_the_service_is_for_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def served(host: str) -> None:
        server.serve(settings(f"server.host={host}", f"auth.keys={tmp_path / 'keys.json'}"))

    async def ends(*_: Any) -> None:
        pass

    monkeypatch.setattr(server, "_serve", ends)
    for host in ("0.0.0.0", "::", "10.1.2.3"):
        with pytest.raises(SettingsError, match=r"server\.host.*antiphon keys add"):
            served(host)
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        caplog.clear()
        served(host)
        assert "no API key" in caplog.text
    add(tmp_path / "keys.json")
    caplog.clear()
    served("0.0.0.0")
    assert "no API key" not in caplog.text


# --- client secrets -------------------------------------------------------------------------------------


async def test_a39_a_session_begins_with_what_its_secret_is_bound_to(tmp_path: Path) -> None:
    async with locked(tmp_path) as (url, key), sdk(url, key) as server_side:
        secret = await server_side.realtime.client_secrets.create(
            expires_after={"anchor": "created_at", "seconds": 60},
            session={
                "type": "realtime",
                "model": "gpt-realtime-mini",
                "instructions": "Answer in rhymes.",
                "audio": {"output": {"voice": "alto"}},
            },
        )
        assert secret.value.startswith("ek_")
        assert secret.session.type == "realtime"
        assert secret.session.instructions == "Answer in rhymes."
        browser = {"subprotocols": ["realtime", f"openai-insecure-api-key.{secret.value}"]}
        for _ in range(2):  # as often as wanted
            async with client(url, "?model=another", **browser) as me:
                session = (await me.next())["session"]
                assert session["instructions"] == "Answer in rhymes."
                assert session["audio"]["output"]["voice"] == "alto"
                assert session["model"] == "gpt-realtime-mini"
        async with client(url, additional_headers={"Authorization": f"Bearer {key}"}) as me:
            assert (await me.next())["session"]["instructions"] != "Answer in rhymes."
        async with http(url, secret.value) as thief:
            for path in GUARDED:
                assert (await thief.get(path)).status_code == 401
            assert (await thief.post("/v1/realtime/client_secrets", json={})).status_code == 401


async def test_a39_a_secrets_session_speaks_as_it_was_bound_to() -> None:
    chat = FakeChat("It is noon.")
    async with running(settings(), engines=fake_engines(chat=chat)) as url, http(url) as page:
        session = {"type": "realtime", "instructions": "Rhyme.", "output_modalities": ["text"]}
        made = (await page.post("/v1/realtime/client_secrets", json={"session": session})).json()
        async with client(url, additional_headers={"Authorization": f"Bearer {made['value']}"}) as me:
            await me.write()
    assert chat.requests[-1].messages[0].content == "Rhyme."


async def test_a39_a_secret_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("antiphon.transport.server.time.time", lambda: now[0])
    async with running(settings(), engines=fake_engines()) as url, http(url) as page:
        made = (
            await page.post("/v1/realtime/client_secrets", json={"expires_after": {"seconds": 10}})
        ).json()
        assert made["expires_at"] == 1010
        options = {"subprotocols": ["realtime", f"openai-insecure-api-key.{made['value']}"]}
        async with client(url, **options) as me:
            await me.until("session.created")
            now[0] = 1010.0
            status, error = await denied(url, **options)
            assert (status, error["code"]) == (401, "invalid_api_key")
            assert "expired" in error["message"]
            assert (await me.write())[-1]["response"]["status"] == "completed"  # what is open goes on


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"expires_after": {"seconds": 9}}, "expires_after.seconds"),
        ({"expires_after": {"seconds": 7201}}, "expires_after.seconds"),
        ({"expires_after": {"anchor": "now"}}, "expires_after.anchor"),
        ({"session": []}, "session"),
        ({"session": {"type": "transcription", "model": "antiphon"}}, "session.model"),
        ({"session": {"voice": "alto"}}, "session.voice"),
        ({"session": {"audio": {"output": {"voice": "nobody"}}}}, "session.audio.output.voice"),
        ({"session": {"audio": {"output": {"speed": 3}}}}, "session.audio.output.speed"),
    ],
)
async def test_a_secret_for_no_session_is_refused(body: dict[str, Any], param: str) -> None:
    async with running(settings(), engines=fake_engines()) as url, http(url) as page:
        answer = await page.post("/v1/realtime/client_secrets", json=body)
    assert answer.status_code == 400
    assert envelope(answer)["param"] == param


# --- limits of a key ------------------------------------------------------------------------------------


async def test_requests_a_minute(tmp_path: Path) -> None:
    async with locked(tmp_path, requests_per_minute=2) as (url, key), sdk(url, key) as me:
        first = await me.models.with_raw_response.list()
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        await me.models.list()
        with pytest.raises(openai.RateLimitError) as caught:
            await me.models.list()
        assert caught.value.code == "rate_limit_exceeded"
        assert 1 <= int(caught.value.response.headers["retry-after"]) <= 30
        status, error = await denied(url, additional_headers={"Authorization": f"Bearer {key}"})
        assert (status, error["code"]) == (429, "rate_limit_exceeded")


async def test_sessions_at_a_time(tmp_path: Path) -> None:
    async with locked(tmp_path, sessions=1) as (url, key), http(url, key) as page:
        options = {"additional_headers": {"Authorization": f"Bearer {key}"}}
        made = (await page.post("/v1/realtime/client_secrets", json={})).json()["value"]
        async with client(url, **options) as first:
            await first.until("session.created")
            for token in (key, made):
                status, error = await denied(url, additional_headers={"Authorization": f"Bearer {token}"})
                assert (status, error["code"]) == (429, "rate_limit_exceeded")
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    async with client(url, **options) as second:
                        await second.until("session.created")
                    break
                except InvalidStatus:  # the first is not quite closed
                    await asyncio.sleep(0.02)


async def heard(me: Client, seconds: float) -> None:
    for _ in range(round(seconds)):
        await me.append(np.zeros(RATE, np.float32))


async def test_audio_seconds_a_minute(tmp_path: Path) -> None:
    async with locked(tmp_path, audio_seconds_per_minute=5) as (url, key):
        options = {"additional_headers": {"Authorization": f"Bearer {key}"}}
        async with client(url, **options) as me:
            await me.until("session.created")
            await heard(me, 12)
            assert await me.closed() == 1008
            assert me.events[-1]["error"]["code"] == "rate_limit_exceeded"
        status, error = await denied(url, **options)
        assert (status, error["code"]) == (429, "rate_limit_exceeded")


async def test_what_is_spoken_counts_as_audio(tmp_path: Path) -> None:
    async with locked(tmp_path, audio_seconds_per_minute=1) as (url, key):
        options = {"additional_headers": {"Authorization": f"Bearer {key}"}}
        async with client(url, **options) as me:
            await me.append(np.concatenate([tone(0.4, RATE), np.zeros(RATE // 2, np.float32)]))
            assert await me.closed() == 1008
            assert me.events[-1]["error"]["code"] == "rate_limit_exceeded"
        assert (await denied(url, **options))[0] == 429


# --- clients that leave or do not read, and a server that stops -----------------------------------------

SAY = {"model": "tts-1", "voice": "alloy", "input": "One. Two. Three. " * 20, "response_format": "pcm"}


class SlowVoice(FakeVoice):
    """Speaks its second clause when `hold` is set. active: clauses being spoken."""

    def __init__(self) -> None:
        super().__init__()
        self.hold = asyncio.Event()
        self.waits = asyncio.Event()
        self.free = asyncio.Event()

    @asynccontextmanager
    async def synthesize(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        self.free.clear()
        try:
            if self.spoken:
                self.waits.set()
                await self.hold.wait()
            async with super().synthesize(*args, **options) as chunks:
                yield chunks
        finally:
            self.free.set()


async def test_a16_a_client_that_leaves_frees_the_engine_and_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    voice = SlowVoice()
    async with running(settings(), engines=fake_engines(voice=voice)) as url, asyncio.timeout(PATIENCE):
        async with http(url) as me, me.stream("POST", "/v1/audio/speech", json=SAY) as answer:
            pieces = answer.aiter_raw()
            await anext(pieces)
            await voice.waits.wait()
            assert not voice.free.is_set()
            await pieces.aclose()
        await voice.free.wait()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_client_that_never_reads_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    voice = FakeVoice()
    long = {**SAY, "input": "This is a long sentence with many words. " * 90}
    async with (
        running(settings("server.send_timeout=1"), engines=fake_engines(voice=voice)) as url,
        asyncio.timeout(PATIENCE),
    ):
        host, port = url.removeprefix("ws://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1024)
        body = json.dumps(long).encode()
        head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        async with http(url) as other:
            while "took nothing" not in caplog.text:
                await asyncio.sleep(0.05)
                assert (await other.get("/health")).status_code == 200
        writer.transport.abort()
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []


async def test_stopping_finishes_the_running_answer_and_refuses_new_ones() -> None:
    voice = SlowVoice()
    service = running(settings(), engines=fake_engines(voice=voice))
    url = await service.__aenter__()
    async with asyncio.timeout(PATIENCE), http(url) as me, http(url) as late:
        async with me.stream("POST", "/v1/audio/speech", json=SAY) as answer:
            pieces = answer.aiter_raw()
            first = await anext(pieces)
            await voice.waits.wait()
            stopping = asyncio.create_task(service.__aexit__(None, None, None))
            while (health := await late.get("/health")).status_code == 200:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            assert health.json() == {"status": "draining"}
            assert (await late.get("/ready")).status_code == 503
            refused = await late.post("/v1/audio/speech", json=SAY)
            assert refused.status_code == 503
            assert envelope(refused)["code"] == "server_draining"
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.headers["x-should-retry"] == "true"
            voice.hold.set()
            rest = [piece async for piece in pieces]
        await stopping
    expected = sum(len(tone(0.05 * len(text), RATE)) * 2 for text in voice.spoken)
    assert len(first) + sum(map(len, rest)) == expected


async def test_stopping_ends_what_takes_too_long() -> None:
    voice = SlowVoice()
    service = running(settings("server.drain_seconds=0"), engines=fake_engines(voice=voice))
    url = await service.__aenter__()
    async with (
        asyncio.timeout(PATIENCE),
        http(url) as me,
        me.stream("POST", "/v1/audio/speech", json=SAY) as answer,
    ):
        pieces = answer.aiter_raw()
        await anext(pieces)
        await voice.waits.wait()
        await service.__aexit__(None, None, None)
        assert voice.free.is_set()
        with pytest.raises(httpx.RemoteProtocolError):
            _ = [piece async for piece in pieces]
