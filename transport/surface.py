"""The HTTP application around the endpoints: what happens to every request, whichever it is for.

    request ─▶ id ─▶ route ─▶ key ─▶ limits ─▶ room ─▶ endpoint
               │      404,405  401    429       503      400…500
    answer  ◀─ x-request-id, CORS, rate-limit headers, and every error in OpenAI's envelope

No error leaves this module: what no endpoint foresaw is a 500 that says nothing of its cause, which the log
has. When the server drains, new requests for models are refused, running ones have `drain`'s time, and what
runs longer is cut off.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from ..pipeline.errors import AntiphonError, BadRequest, Forbidden, NotAllowed, NotFound, Overloaded, TooSlow
from ..pipeline.logs import where
from ..pipeline.metrics import BUCKETS, Metrics
from ..pipeline.settings import HttpSettings
from .auth import Client, Gate, presented
from .cors import Cors, loopback
from .http import CLIENT, ClientGone, Endpoint, refused

CLIENT_GONE = 499
"""The status under which an answer that nobody waited for is counted."""

LAST_SECONDS = 5.0
"""What requests that were cut off when the server drains may take to end."""

LONGEST = 200
"""Characters of a path in an error."""

KNOWN = frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH"})
"""Methods that are counted by name."""

log = logging.getLogger("antiphon.server")


class Draining(Overloaded):
    code = "server_draining"


class TooManyRequests(Overloaded):
    code = "too_many_requests"


@dataclass(frozen=True, slots=True)
class _Route:
    """The endpoints of one path, by method."""

    path: str
    pattern: re.Pattern[str]
    convertors: Mapping[str, Any]
    methods: Mapping[str, Endpoint]

    @property
    def allow(self) -> str:
        return ", ".join(["OPTIONS", *(["HEAD"] if "GET" in self.methods else []), *self.methods])


class Routes:
    """Which endpoint a path and a method mean. A fixed path goes before one with a variable."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        paths: dict[str, dict[str, Endpoint]] = {}
        for endpoint in endpoints:
            methods = paths.setdefault(endpoint.path, {})
            if endpoint.method in methods:
                raise ValueError(f"{endpoint.method} {endpoint.path} is served twice")
            methods[endpoint.method] = endpoint
        routes: list[_Route] = []
        for path in sorted(paths, key=lambda path: (":path}" in path, "{" in path)):
            pattern, _, convertors = compile_path(path)
            routes.append(_Route(path, pattern, convertors, paths[path]))
        self._routes = routes

    def find(self, path: str) -> tuple[_Route, dict[str, Any]] | None:
        """The route and its variables."""
        for route in self._routes:
            if found := route.pattern.match(path):
                named = found.groupdict()
                return route, {name: route.convertors[name].convert(value) for name, value in named.items()}
        return None


class Surface:
    """The application.

    realtime: serves the websocket at `realtime_path` for a client who may come in. The surface accepts no
    socket itself.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        gate: Gate,
        settings: HttpSettings,
        metrics: Metrics,
        *,
        new_id: Callable[[str], str],
        realtime_path: str,
        realtime: Callable[[WebSocket, Client], Awaitable[None]],
    ) -> None:
        self.draining = False
        self._routes = Routes(endpoints)
        self._gate = gate
        self._settings = settings
        self._cors = Cors(settings.cors_origins, local=lambda: not gate.required)
        self._new_id = new_id
        self._realtime_path = realtime_path
        self._realtime = realtime
        self._running: set[asyncio.Timeout] = set()
        self._working = 0
        self._idle = asyncio.Event()
        self._idle.set()
        registry = metrics.registry
        self._answered = Counter(
            "antiphon_http_requests",
            "HTTP requests answered; status 499: the client left first",
            ["method", "route", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            "antiphon_http_request_seconds",
            "From a request's head to the end of its answer",
            ["route"],
            buckets=BUCKETS,
            registry=registry,
        )
        self._in_progress = Gauge(
            "antiphon_http_requests_in_progress", "HTTP requests being answered", registry=registry
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["request_id"] = self._new_id("req")
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await self._websocket(WebSocket(scope, receive, send))

    async def drain(self, seconds: float) -> None:
        """Refuse new requests for models; let running ones finish for at most `seconds`, then cut them off."""
        self.draining = True
        for patience in (seconds, LAST_SECONDS):
            try:
                async with asyncio.timeout(patience):
                    await self._idle.wait()
                return
            except TimeoutError:
                log.warning("%d HTTP requests were not finished in time", len(self._running))
                for limit in self._running:
                    limit.reschedule(0)

    # --- HTTP -----------------------------------------------------------------------------------------------

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.monotonic()
        headers = Headers(scope=scope)
        answer = _Answer(scope, send, self._cors.headers(headers.get("origin")))
        incoming = _Incoming(receive, self._settings.read_timeout)
        found = self._routes.find(scope["path"])
        limit = asyncio.timeout(None)
        self._running.add(limit)
        self._idle.clear()
        self._in_progress.inc()
        try:
            async with limit:
                await self._guarded(scope, incoming.receive, answer, found)
        except TimeoutError:
            await self._refuse(scope, incoming.receive, answer, self._leaving())
        finally:
            self._running.discard(limit)
            if not self._running:
                self._idle.set()
            self._in_progress.dec()
            route = "other" if found is None else found[0].path
            method = scope["method"] if scope["method"] in KNOWN else "other"
            status = str(answer.status or CLIENT_GONE)
            seconds = time.monotonic() - began
            self._answered.labels(method, route, status).inc()
            self._seconds.labels(route).observe(seconds)
            log.debug("%s %s %s %s %.3f s", scope["request_id"], method, route, status, seconds)

    async def _guarded(
        self, scope: Scope, receive: Receive, answer: _Answer, found: tuple[_Route, dict[str, Any]] | None
    ) -> None:
        """Answer, whatever happens. Being cancelled, it answers nothing."""
        try:
            if scope["method"] == "OPTIONS":
                await self._options(scope, found)(scope, receive, answer.send)
                return
            endpoint, request = self._meant(scope, receive, found)
            if not endpoint.public:
                await self._let_in(request, answer)
            with self._room(endpoint):
                response = await endpoint.handler(request)
                await response(scope, receive, answer.send)
        except (ClientGone, ClientDisconnect):
            pass
        except AntiphonError as error:
            await self._refuse(scope, receive, answer, error)
        except HTTPException as error:
            await self._refuse(scope, receive, answer, _from_starlette(error), error.headers)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Not we were cancelled, but something that an engine waited for.
            await self._fail(scope, receive, answer, error)
        except Exception as error:
            await self._fail(scope, receive, answer, error)

    def _options(self, scope: Scope, found: tuple[_Route, dict[str, Any]] | None) -> Response:
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin and "access-control-request-method" in headers:
            wanted = headers.get("access-control-request-headers", "")
            return Response(status_code=204, headers=self._cors.preflight(origin, wanted))
        if found is None:
            raise unknown(f"OPTIONS {scope['path']}")
        return Response(status_code=204, headers={"Allow": found[0].allow})

    def _meant(
        self, scope: Scope, receive: Receive, found: tuple[_Route, dict[str, Any]] | None
    ) -> tuple[Endpoint, Request]:
        method = scope["method"]
        if found is None:
            raise unknown(f"{method} {scope['path']}")
        route, scope["path_params"] = found
        endpoint = route.methods.get("GET" if method == "HEAD" else method)
        if endpoint is None:
            raise NotAllowed(f"{scope['path'][:LONGEST]} does not take {method}.", route.allow)
        return endpoint, Request(scope, receive)

    async def _let_in(self, request: Request, answer: _Answer) -> None:
        """Who asks becomes known. Raises Unauthorized, Forbidden, RateLimited."""
        if not self._gate.required:
            self._from_here(request.headers)
        client = request.scope[CLIENT] = await self._gate.enter(presented(request.headers))
        try:
            client.meter.request(client.now())
        finally:
            answer.headers.update(client.meter.headers(client.now()))

    def _from_here(self, headers: Headers) -> None:
        """Without a key the machine's own programs may ask, and no page of the web: a simple request needs no
        preflight, and a name that was bound anew to this machine makes its answers readable. Raises Forbidden.
        """
        if (origin := headers.get("origin")) is not None and not self._cors.allows(origin):
            raise Forbidden(f"Pages of {origin[:LONGEST]} may not ask here (http.cors_origins).")
        if (host := headers.get("host")) is not None and not loopback(f"//{host}"):
            raise Forbidden(
                f"Without an API key this server answers to localhost and 127.0.0.1, not to {host[:LONGEST]}; "
                "`antiphon keys add NAME` makes a key."
            )

    @contextmanager
    def _room(self, endpoint: Endpoint) -> Generator[None, None, None]:
        """A place for a request that computes, from its body to the end of its answer. Raises Overloaded."""
        if endpoint.public or endpoint.method != "POST":
            yield
            return
        if self.draining:
            raise self._leaving()
        if self._working >= self._settings.max_requests:
            raise TooManyRequests(
                f"{self._settings.max_requests} requests are being answered (http.max_requests); try again."
            )
        self._working += 1
        try:
            yield
        finally:
            self._working -= 1

    def _leaving(self) -> Draining:
        return Draining("The server is shutting down; ask again in a moment.")

    async def _fail(self, scope: Scope, receive: Receive, answer: _Answer, error: BaseException) -> None:
        log.error("request %s failed: %s", scope["request_id"], where(error))
        fault = AntiphonError("The server failed; its log has the reason.", code="internal_error")
        await self._refuse(scope, receive, answer, fault)

    async def _refuse(
        self,
        scope: Scope,
        receive: Receive,
        answer: _Answer,
        error: AntiphonError,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send an error; where an answer has begun, leave it unfinished, and the connection is closed."""
        if answer.status is None:
            await refused(error, headers)(scope, receive, answer.send)

    # --- websockets -----------------------------------------------------------------------------------------

    async def _websocket(self, websocket: WebSocket) -> None:
        scope = websocket.scope
        try:
            if scope["path"] != self._realtime_path:
                raise unknown(f"websocket {scope['path']}")
            origin = websocket.headers.get("origin")
            if origin is not None and not self._cors.allows(origin):
                # No browser asks before it opens a websocket, so what CORS would forbid is refused here.
                raise Forbidden(f"Pages of {origin[:LONGEST]} may not ask here (http.cors_origins).")
            key = presented(websocket.headers, scope["subprotocols"])
            client = await self._gate.enter(key, realtime=True)
            client.meter.request(client.now())
            await self._realtime(websocket, client)
        except AntiphonError as error:
            headers = {"X-Request-Id": scope["request_id"]}
            await websocket.send_denial_response(refused(error, headers))


class _Answer:
    """What is sent, with what every answer has besides. status: None before it begins."""

    def __init__(self, scope: Scope, send: Send, headers: Mapping[str, str]) -> None:
        self.status: int | None = None
        self.headers = {"x-request-id": scope["request_id"], **headers}
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            more = [(name.lower().encode(), value.encode("latin-1")) for name, value in self.headers.items()]
            message["headers"] = [*message["headers"], *more]
        await self._send(message)


class _Incoming:
    """What the client sends, with a limit to how long the next piece of the body may take."""

    def __init__(self, receive: Receive, patience: float) -> None:
        self._receive = receive
        self._patience = patience
        self._whole = False

    async def receive(self) -> Message:
        """Raises TooSlow. Cancelling is safe."""
        if self._whole:
            return await self._receive()
        try:
            async with asyncio.timeout(self._patience):
                message = await self._receive()
        except TimeoutError:
            raise TooSlow(
                f"Nothing more of the body came for {self._patience:g} s (http.read_timeout)."
            ) from None
        self._whole = not message.get("more_body", False)
        return message


def unknown(asked: str) -> NotFound:
    return NotFound(f"Unknown request URL: {asked[:LONGEST]}.", code="unknown_url")


def _from_starlette(error: HTTPException) -> AntiphonError:
    """What a part of Starlette refuses, a broken form for one."""
    ours = BadRequest(error.detail) if error.status_code < 500 else AntiphonError(error.detail)
    ours.status = error.status_code
    return ours
