"""The composition root: settings in, a running server out.

    serve      the command: until a signal, then drained
    running    the same inside another program's event loop, on a free port: for `talk`, `bench` and tests
    create_app the HTTP application around engines that are there already

A server that listens is ready: the port is taken first (so a taken one is known at once), then the models are
loaded and warmed, and only then does it listen. `GET /health` is 503 again while it drains.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from ..pipeline.engines import Engines
from ..pipeline.errors import AntiphonError, BadRequest, NotFound, Overloaded, SetupError
from ..pipeline.events import SessionConfig, TurnPolicy
from ..pipeline.metrics import Metrics, TurnTrace
from ..pipeline.session import Session
from ..pipeline.settings import ServerSettings, Settings
from .engines import load_engines
from .session_object import Offer
from .websocket import Realtime

PING_INTERVAL = 10.0
PING_TIMEOUT = 15.0
"""Seconds: a client whose host has vanished is found within their sum."""

log = logging.getLogger("antiphon.server")

Record = Callable[[TurnTrace], None]


def new_id(prefix: str) -> str:
    """A fresh id, "item_…"; 96 random bits, so that none can be guessed or met twice."""
    return f"{prefix}_{secrets.token_hex(12)}"


# --- the application ------------------------------------------------------------------------------------


def create_app(settings: Settings, engines: Engines, *, record: Record | None = None) -> Starlette:
    """The HTTP and websocket application. record: is given every turn's trace too.

    `app.state.realtime` is the Realtime endpoint, for draining.
    """
    metrics = Metrics(texts=settings.log.transcripts)
    metrics.watch_queue("asr", lambda: len(engines.english))
    metrics.watch_queue("vad", lambda: len(engines.vad))
    offer = Offer(
        defaults=session_defaults(settings),
        voices=engines.voice.voices,
        transcription_model=settings.asr.model,
        max_append_bytes=settings.session.max_append_bytes,
    )

    def note(trace: TurnTrace) -> None:
        metrics.record(trace)
        if record is not None:
            record(trace)

    def open_session() -> Session:
        return Session(engines, settings, config=offer.defaults, new_id=new_id, record=note)

    realtime = Realtime(settings, offer, open_session, metrics, new_id=new_id, time=time.time)

    async def health(request: Request) -> Response:
        if realtime.draining:
            return JSONResponse({"status": "draining"}, 503)
        return JSONResponse({"status": "ok"})

    async def exposition(request: Request) -> Response:
        return Response(metrics.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def traces(request: Request) -> Response:
        return JSONResponse({"traces": metrics.traces(request.query_params.get("session"))})

    async def upgrade(request: Request) -> Response:
        raise HTTPException(426, "This is a websocket: connect to it with ws://.", {"Upgrade": "websocket"})

    app = Starlette(
        routes=[
            Route("/health", health),
            Route("/metrics", exposition),
            Route("/debug/traces", traces),
            Route("/v1/realtime", upgrade),
            WebSocketRoute("/v1/realtime", realtime.endpoint),
            WebSocketRoute("/{path:path}", _no_websocket),
        ],
        exception_handlers={HTTPException: _http_error, AntiphonError: _our_error, Exception: _unknown_error},
    )
    app.add_middleware(RequestId)
    app.state.realtime = realtime
    return app


def session_defaults(settings: Settings) -> SessionConfig:
    """What a session is before its client says anything."""
    return SessionConfig(
        instructions=settings.llm.instructions,
        voice=settings.tts.voice,
        language=settings.asr.language,
        vad_threshold=settings.vad.threshold,
        prefix_padding=settings.vad.prefix_padding,
        turn=TurnPolicy(silence=settings.turn.silence, speculate=settings.turn.speculate),
    )


class RequestId:
    """Names every request in `scope["request_id"]`, and every HTTP response in X-Request-Id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["request_id"] = new_id("req")

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", scope["request_id"].encode())]
            await send(message)

        await self._app(scope, receive, named)


def _answer(error: AntiphonError, status: int, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": error.body()}, status, headers)


async def _our_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, AntiphonError)
    headers = {"Retry-After": str(error.retry_after)} if isinstance(error, Overloaded) else None
    return _answer(error, error.status, headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    match error.status_code:
        case 404:
            answer = NotFound(
                f"Unknown request URL: {request.method} {request.url.path}.", code="unknown_url"
            )
        case 405:
            answer = BadRequest(
                f"{request.url.path} does not take {request.method}.", code="method_not_allowed"
            )
        case _:
            answer = BadRequest(error.detail)
    return _answer(answer, error.status_code, headers)


def _unknown_url(asked: str) -> NotFound:
    return NotFound(f"Unknown request URL: {asked}.", code="unknown_url")


async def _no_websocket(websocket: WebSocket) -> None:
    error = _unknown_url(f"websocket {websocket.url.path}")
    await websocket.send_denial_response(
        _answer(error, error.status, {"X-Request-Id": websocket.scope["request_id"]})
    )


async def _unknown_error(request: Request, error: Exception) -> Response:
    # Starlette answers these outside every middleware, so the id is set here; it also raises the error on,
    # and uvicorn logs it.
    error = AntiphonError("The server failed; its log has the reason.", code="internal_error")
    return _answer(error, 500, {"X-Request-Id": request.scope["request_id"]})


# --- the server -----------------------------------------------------------------------------------------


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT, drain, and return 0. A second signal exits at once.

    Raises SetupError when the port is taken or a model cannot be had.
    """
    asyncio.run(_serve(settings))
    return 0


async def _serve(settings: Settings) -> None:
    async with _listening(settings, load_engines(settings), None) as url:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_signal(number: signal.Signals) -> None:
            if stop.is_set():
                log.warning("%s again: exiting at once", number.name)
                os._exit(128 + number)
            log.info(
                "%s: finishing running replies, at most %g s", number.name, settings.server.drain_seconds
            )
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal, number)
        log.info("listening on %s/v1/realtime", url)
        await stop.wait()
    log.info("stopped")


def running(
    settings: Settings,
    *,
    record: Record | None = None,
    engines: AbstractAsyncContextManager[Engines] | None = None,
) -> AbstractAsyncContextManager[str]:
    """Run the server in this event loop, on a free port of this machine; gives its base URL, "ws://host:port".

    record: is given the trace of every turn. engines: instead of the ones the settings name.
    Leaving it drains the server as a signal would. Raises SetupError.
    """
    here = settings.server.model_copy(update={"host": "127.0.0.1", "port": 0})
    settings = settings.model_copy(update={"server": here})
    return _listening(settings, engines or load_engines(settings), record)


@asynccontextmanager
async def _listening(
    settings: Settings, engines: AbstractAsyncContextManager[Engines], record: Record | None
) -> AsyncGenerator[str, None]:
    with _bound(settings.server) as listener:
        async with engines as models:
            app = create_app(settings, models, record=record)
            server = _Server(
                uvicorn.Config(
                    app,
                    ws="websockets-sansio",
                    ws_max_size=settings.server.max_message_bytes,
                    ws_ping_interval=PING_INTERVAL,
                    ws_ping_timeout=PING_TIMEOUT,
                    ws_per_message_deflate=False,
                    lifespan="off",
                    log_config=None,
                    log_level="warning",
                    access_log=False,
                    server_header=False,
                    timeout_graceful_shutdown=5,
                )
            )
            serving = asyncio.create_task(server.serve([listener]), name="server")
            try:
                await server.listening.wait()
                host, port = listener.getsockname()[:2]
                yield f"ws://{f'[{host}]' if ':' in host else host}:{port}"
            finally:
                await app.state.realtime.drain(settings.server.drain_seconds)
                server.should_exit = True
                await serving


def _bound(settings: ServerSettings) -> socket.socket:
    """A socket that has the address but does not listen yet. Raises SetupError that names the setting."""
    host, port = settings.host, settings.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise SetupError(f"server.host = {host!r}: {error.strerror}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # Accepted sockets inherit it. Without it the kernel keeps what a client that vanished, or never
            # reads, has not taken for many minutes after we closed; it must not come before our own timeout.
            patience = round((settings.send_timeout + 5) * 1000)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience)
        listener.bind(address)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise SetupError(
            f"cannot listen on {host}:{port}: {error.strerror}; set server.port to another, or to 0 for any"
        ) from error
    return listener


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, saying when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()
