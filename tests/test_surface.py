"""What happens to every HTTP request, whichever it is for: without a socket, around endpoints made for it."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from exchange import Exchange, ask
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from antiphon.pipeline.errors import Overloaded
from antiphon.pipeline.metrics import Metrics
from antiphon.pipeline.settings import AuthSettings, HttpSettings
from antiphon.transport.auth import Client, EphemeralSecrets, Gate
from antiphon.transport.http import Endpoint, answer, client_of, connected, read_json, spend_audio
from antiphon.transport.keys import WatchedKeys, change, new_key
from antiphon.transport.models import Models, Served
from antiphon.transport.surface import Routes, Surface

MODELS = Models((Served("org/name:1", "chat"),))


class Body(BaseModel):
    model_config = ConfigDict(strict=True)

    model: str
    n: int = 1


class World:
    """A surface around a few endpoints. hold: while it is not set, POST /v1/slow does not answer."""

    def __init__(self, folder: Path | None = None, **http: Any) -> None:
        self.hold = asyncio.Event()
        self.entered = asyncio.Event()
        self.slots = 0
        self.metrics = Metrics()
        self.secret = ""
        keys = None
        if folder is not None:
            key, self.secret = new_key("me", 0, requests_per_minute=2, audio_seconds_per_minute=60)
            change(folder / "keys.json", lambda ring: (ring.added(key), None))
            keys = WatchedKeys(folder / "keys.json", lambda: 0.0)
        numbers = iter(range(1, 10_000))
        self.surface = Surface(
            [
                Endpoint("POST", "/v1/read", self.read, "", body=Body),
                Endpoint("POST", "/v1/slow", self.slow, ""),
                Endpoint("GET", "/v1/things/{id:path}", self.thing, ""),
                Endpoint("DELETE", "/v1/things/{id:path}", self.thing, ""),
                Endpoint("GET", "/v1/things/fixed", self.fixed, ""),
                Endpoint("GET", "/v1/who", self.who, ""),
                Endpoint("GET", "/open", self.fixed, "", public=True),
                *(Endpoint("GET", f"/fault/{name}", self.fault(error), "") for name, error in FAULTS.items()),
            ],
            Gate(AuthSettings(), keys, EphemeralSecrets(), time=lambda: 0.0, unix=lambda: 0.0),
            HttpSettings().model_copy(update=http),
            self.metrics,
            new_id=lambda prefix: f"{prefix}_{next(numbers)}",
            realtime_path="/v1/realtime",
            realtime=self.talk,
        )

    async def read(self, request: Request) -> Response:
        body = await read_json(request, Body, limit=100)
        MODELS.resolve(body.model, "chat")
        spend_audio(request, 90)
        return answer({"n": body.n})

    async def slow(self, request: Request) -> Response:
        await request.body()

        async def work() -> None:
            self.slots += 1
            self.entered.set()
            try:
                await self.hold.wait()
            finally:
                self.slots -= 1

        await connected(request, work())
        return answer({})

    async def thing(self, request: Request) -> Response:
        return answer({"id": request.path_params["id"], "method": request.method})

    async def fixed(self, request: Request) -> Response:
        return answer({"fixed": True})

    async def who(self, request: Request) -> Response:
        return answer({"key": client_of(request).key})

    def fault(self, error: BaseException) -> Callable[[Request], Any]:
        async def fail(request: Request) -> Response:
            raise error

        return fail

    async def talk(self, websocket: WebSocket, client: Client) -> None:
        raise AssertionError("no websocket here")

    async def ask(self, method: str, path: str, body: Any = b"", **headers: str) -> Exchange:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await ask(self.surface, method, path, body, named)

    def counted(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"antiphon_http_{name}", labels)


PRIVATE = "what the user said"
FAULTS: dict[str, BaseException] = {
    "ours": RuntimeError(PRIVATE),
    "key": KeyError(PRIVATE),
    "full": Overloaded("Full.", retry_after=3),
    "starlette": HTTPException(400, "There was an error parsing the body", {"X-Why": "form"}),
    "cancelled": asyncio.CancelledError(PRIVATE),
    "time": TimeoutError(PRIVATE),
}

# --- routes ---------------------------------------------------------------------------------------------


async def test_a_path_and_a_method_mean_an_endpoint() -> None:
    world = World()
    got = await world.ask("GET", "/v1/things/a/b:c")
    assert got.json == {"id": "a/b:c", "method": "GET"}
    assert (await world.ask("DELETE", "/v1/things/x")).json["method"] == "DELETE"
    assert (await world.ask("GET", "/v1/things/fixed")).json == {"fixed": True}
    assert world.counted("requests_total", method="GET", route="/v1/things/{id:path}", status="200") == 1


def test_nothing_is_served_twice() -> None:
    async def handler(request: Request) -> Response:
        return answer({})

    with pytest.raises(ValueError, match="GET /x is served twice"):
        Routes([Endpoint("GET", "/x", handler, "")] * 2)


async def test_head_and_options_are_answered() -> None:
    world = World()
    assert (await world.ask("HEAD", "/v1/things/x")).status == 200
    got = await world.ask("OPTIONS", "/v1/things/x")
    assert got.status == 204
    assert {word.strip() for word in got.headers["allow"].split(",")} == {"GET", "HEAD", "DELETE", "OPTIONS"}
    assert (await world.ask("OPTIONS", "/nowhere")).status == 404


# --- errors ---------------------------------------------------------------------------------------------

A15: dict[str, tuple[str, str, Any, int, str | None, str | None]] = {
    "bad JSON": ("POST", "/v1/read", b"{", 400, "invalid_json", None),
    "no body": ("POST", "/v1/read", b"", 400, "invalid_json", None),
    "no object": ("POST", "/v1/read", b"[1]", 400, "invalid_type", None),
    "wrong type": ("POST", "/v1/read", {"model": "org/name:1", "n": "1"}, 400, "invalid_type", "n"),
    "missing field": ("POST", "/v1/read", {}, 400, "missing_required_parameter", "model"),
    "unknown model": ("POST", "/v1/read", {"model": "x"}, 404, "model_not_found", "model"),
    "unknown route": ("GET", "/v1/nothing", b"", 404, "unknown_url", None),
    "wrong method": ("PUT", "/v1/read", b"", 405, "method_not_allowed", None),
    "strange method": ("BREW", "/v1/read", b"", 405, "method_not_allowed", None),
    "oversized body": ("POST", "/v1/read", b" " * 101, 413, "too_large", None),
    "overload": ("GET", "/fault/full", b"", 503, "overloaded", None),
    "a part of the framework": ("GET", "/fault/starlette", b"", 400, None, None),
    "a fault of ours": ("GET", "/fault/ours", b"", 500, "internal_error", None),
    "another fault": ("GET", "/fault/key", b"", 500, "internal_error", None),
    "an engine that gave up": ("GET", "/fault/cancelled", b"", 500, "internal_error", None),
    "an engine out of time": ("GET", "/fault/time", b"", 500, "internal_error", None),
}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "param"), list(A15.values()), ids=list(A15)
)
async def test_a15_every_error_is_in_the_envelope(
    method: str,
    path: str,
    body: Any,
    status: int,
    code: str | None,
    param: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    got = await World().ask(method, path, body)
    assert got.status == status
    assert (got.error["code"], got.error["param"]) == (code, param)
    assert got.error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    assert got.headers["content-type"] == "application/json"
    assert got.headers["x-request-id"] == "req_1"
    for text in (got.error["message"], caplog.text):
        assert PRIVATE not in text
        assert "Traceback" not in text


async def test_errors_have_their_headers() -> None:
    world = World()
    assert (await world.ask("PUT", "/v1/read")).headers["allow"] == "OPTIONS, POST"
    assert (await world.ask("GET", "/fault/full")).headers["retry-after"] == "3"
    assert (await world.ask("GET", "/fault/starlette")).headers["x-why"] == "form"


async def test_a15_a_bad_key(tmp_path: Path) -> None:
    world = World(tmp_path)
    for headers in ({}, {"authorization": "Bearer ak_wrong"}, {"api_key": "x"}, {"authorization": "Basic x"}):
        got = await world.ask("GET", "/v1/who", **headers)
        assert (got.status, got.error["code"]) == (401, "invalid_api_key")
        assert got.headers["www-authenticate"] == "Bearer"
        assert got.headers["x-request-id"]
    assert (await world.ask("GET", "/open")).status == 200
    assert (await world.ask("GET", "/v1/who", authorization=f"Bearer {world.secret}")).json["key"]


async def test_no_key_is_written_into_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    world = World(tmp_path)
    await world.ask("GET", "/v1/who", authorization=f"Bearer {world.secret}")
    await world.ask("GET", "/v1/who", authorization="Bearer ak_wrong_but_mine")
    await world.ask("GET", "/fault/ours", authorization=f"Bearer {world.secret}")
    assert caplog.text
    assert world.secret not in caplog.text
    assert "ak_wrong_but_mine" not in caplog.text


# --- limits ---------------------------------------------------------------------------------------------


async def test_a_key_is_told_what_it_has_left(tmp_path: Path) -> None:
    world = World(tmp_path)
    key = {"authorization": f"Bearer {world.secret}"}
    first = await world.ask("GET", "/v1/who", **key)
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert first.headers["x-ratelimit-reset-requests"] == "30s"
    await world.ask("GET", "/v1/nothing", **key)  # what there is not costs nothing
    await world.ask("GET", "/v1/who", **key)
    third = await world.ask("GET", "/v1/who", **key)
    assert (third.status, third.error["code"], third.error["type"]) == (
        429, "rate_limit_exceeded", "rate_limit_error",
    )  # fmt: skip
    assert third.headers["retry-after"] == "30"
    assert third.headers["x-ratelimit-remaining-requests"] == "0"
    assert (await world.ask("GET", "/open", **key)).status == 200


async def test_audio_over_the_limit_is_refused_the_next_time(tmp_path: Path) -> None:
    world = World(tmp_path)
    key = {"authorization": f"Bearer {world.secret}"}
    body = {"model": "org/name:1"}
    assert (await world.ask("POST", "/v1/read", body, **key)).status == 200
    got = await world.ask("POST", "/v1/read", body, **key)
    assert (got.status, got.error["code"]) == (429, "rate_limit_exceeded")
    assert got.headers["retry-after"] == "30"


# --- room -----------------------------------------------------------------------------------------------


def begin(world: World) -> tuple[Exchange, asyncio.Task[Exchange]]:
    exchange = Exchange("POST", "/v1/slow")
    return exchange, asyncio.create_task(exchange.ask(world.surface))


async def test_one_request_too_many_is_refused_and_may_be_repeated() -> None:
    world = World(max_requests=1)
    _, running = begin(world)
    await world.entered.wait()
    refused = await world.ask("POST", "/v1/slow")
    assert (refused.status, refused.error["code"]) == (503, "too_many_requests")
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.headers["x-should-retry"] == "true"
    assert (await world.ask("GET", "/v1/things/x")).status == 200  # computes nothing
    world.hold.set()
    assert (await running).status == 200
    assert (await world.ask("POST", "/v1/slow")).status == 200


async def test_a_client_that_leaves_frees_its_room_and_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    world = World(max_requests=1)
    exchange, running = begin(world)
    await world.entered.wait()
    assert world.counted("requests_in_progress") == 1
    exchange.leave.set()
    await running
    assert exchange.sent == []
    assert world.slots == 0
    assert world.counted("requests_in_progress") == 0
    assert world.counted("requests_total", method="POST", route="/v1/slow", status="499") == 1
    assert caplog.text == ""
    world.hold.set()
    assert (await world.ask("POST", "/v1/slow")).status == 200


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    world = World(read_timeout=0.01)
    exchange = Exchange("POST", "/v1/read", b'{"model"', whole=False)
    await exchange.ask(world.surface)
    assert (exchange.status, exchange.error["code"]) == (408, "request_timeout")


async def test_draining_refuses_the_new_and_waits_for_the_running() -> None:
    world = World()
    _, running = begin(world)
    await world.entered.wait()
    draining = asyncio.create_task(world.surface.drain(30))
    await asyncio.sleep(0)
    refused = await world.ask("POST", "/v1/slow")
    assert (refused.status, refused.error["code"]) == (503, "server_draining")
    assert refused.headers["x-should-retry"] == "true"
    assert not draining.done()
    world.hold.set()
    await draining
    assert (await running).status == 200


async def test_what_runs_longer_than_the_drain_is_ended() -> None:
    world = World()
    exchange, running = begin(world)
    await world.entered.wait()
    await world.surface.drain(0.01)
    await running
    assert (exchange.status, exchange.error["code"]) == (503, "server_draining")
    assert world.slots == 0


async def test_cancelling_a_request_ends_its_work() -> None:
    world = World()
    _, running = begin(world)
    await world.entered.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert world.slots == 0


# --- browsers -------------------------------------------------------------------------------------------


async def test_pages_may_ask() -> None:
    world = World()
    got = await world.ask(
        "OPTIONS",
        "/v1/read",
        origin="http://localhost:3000",
        access_control_request_method="POST",
        access_control_request_headers="authorization,x-stainless-lang",
    )
    assert got.status == 204
    assert got.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert got.headers["access-control-allow-headers"] == "authorization, x-stainless-lang"
    for path in ("/v1/things/x", "/v1/nothing", "/fault/ours"):
        got = await world.ask("GET", path, origin="http://localhost:3000")
        assert got.headers["access-control-allow-origin"] == "http://localhost:3000"
        assert "x-request-id" in got.headers["access-control-expose-headers"]
    assert "access-control-allow-origin" not in (await world.ask("GET", "/open")).headers
