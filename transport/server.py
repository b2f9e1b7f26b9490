"""The composition root: settings in, a running server out.

    serve        the command: until a signal, then drained
    running      the same inside another program's event loop, on a free port: for `talk`, `bench` and tests
    Application  the HTTP and websocket application around engines that are there already

A server that listens is ready: the port is taken first (so a taken one is known at once), then the models are
loaded and warmed, and only then does it listen. `GET /health` is 503 again while it drains.

Without an API key it listens on this machine's own addresses alone, and says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..pipeline.engines import Engines
from ..pipeline.errors import BadRequest, SettingsError, SetupError
from ..pipeline.events import SessionConfig
from ..pipeline.metrics import Metrics, TurnTrace
from ..pipeline.monitor import Monitor
from ..pipeline.session import Session
from ..pipeline.settings import ServerSettings, Settings
from . import openapi, routes
from .auth import EphemeralSecrets, Gate
from .engines import load_engines
from .http import Endpoint, Services, answer
from .keys import WatchedKeys
from .models import Models
from .offer import offer_of
from .responses_background import Background
from .surface import Surface
from .websocket import Realtime

REALTIME = "/v1/realtime"

PING_INTERVAL = 10.0
PING_TIMEOUT = 15.0
"""Seconds: a client whose host has vanished is found within their sum."""

log = logging.getLogger("antiphon.server")

Record = Callable[[TurnTrace], None]


def new_id(prefix: str) -> str:
    """A fresh id, "item_…"; 96 random bits, so that none can be guessed or met twice."""
    return f"{prefix}_{secrets.token_hex(12)}"


# --- the application ------------------------------------------------------------------------------------


class Application:
    """The HTTP and websocket application.

    record: is given every turn's trace too. keys: who may come in; without, everybody.
    """

    def __init__(
        self,
        settings: Settings,
        engines: Engines,
        *,
        record: Record | None = None,
        keys: WatchedKeys | None = None,
    ) -> None:
        metrics = Metrics(texts=settings.log.transcripts)
        self.monitor = Monitor(settings, engines, metrics)

        def note(trace: TurnTrace) -> None:
            metrics.record(trace)
            self.monitor.answered(trace)
            if record is not None:
                record(trace)

        def open_session(config: SessionConfig) -> Session:
            return Session(engines, settings, config=config, new_id=new_id, record=note)

        offer, ephemeral = offer_of(settings, engines), EphemeralSecrets()
        # Half of the engine's slots are for those who wait.
        self._background = Background(settings.responses.max_background, max(1, settings.llm.slots // 2))
        services = Services(
            settings=settings,
            engines=engines,
            metrics=metrics,
            models=Models.of(settings),
            new_id=new_id,
            time=time.time,
            draining=lambda: self._surface.draining,
            offer=offer,
            secrets=ephemeral,
            background=self._background,
        )
        listed = list(routes.endpoints(services))
        upgrade = Endpoint("GET", REALTIME, _upgrade, "A websocket", public=True)
        self._realtime = Realtime(
            settings, offer, open_session, metrics, self.monitor, new_id=new_id, time=time.time
        )
        self._surface = Surface(
            [*listed, openapi.endpoint(listed), upgrade],
            Gate(settings.auth, keys, ephemeral, time=time.monotonic, unix=time.time),
            settings.http,
            metrics,
            new_id=new_id,
            realtime_path=REALTIME,
            realtime=self._realtime.endpoint,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._surface(scope, receive, send)

    async def drain(self, seconds: float) -> None:
        """Refuse what is new; let replies and requests that run finish for at most `seconds`, then end them."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._realtime.drain(seconds))
            group.create_task(self._surface.drain(seconds))
            group.create_task(self._background.drain(seconds))


async def _upgrade(request: Request) -> Response:
    error = BadRequest("This is a websocket: connect to it with ws://.")
    return answer({"error": error.body()}, 426, {"Upgrade": "websocket", "Connection": "Upgrade"})


# --- the server -----------------------------------------------------------------------------------------


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT, drain, and return 0. A second signal exits at once.

    Raises SetupError when the port is taken, a model cannot be had, or anybody could come in from outside.
    """
    path = settings.auth.path
    keys = WatchedKeys(path, time.monotonic)
    _check_open(settings.server, keys)
    asyncio.run(_serve(settings, keys))
    return 0


def _check_open(settings: ServerSettings, keys: WatchedKeys) -> None:
    """Raises SettingsError for a server that others can reach and that has no key."""
    if keys.required:
        return
    if not _loopback(settings.host):
        raise SettingsError(
            f"server.host = {settings.host!r} can be reached from other machines, and there is no API key; "
            "make one with `antiphon keys add NAME`, or listen on 127.0.0.1"
        )
    log.warning(
        "no API key: every program of this machine may ask, and nobody else; `antiphon keys add NAME` makes one"
    )


def _loopback(host: str) -> bool:
    """Only this machine can reach an address. One that cannot be resolved is reported where it is bound."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return True
    return all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)


async def _serve(settings: Settings, keys: WatchedKeys) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    starting = asyncio.current_task()

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            log.warning("%s again: exiting at once", number.name)
            os._exit(128 + number)
        stop.set()
        if starting is not None:
            log.info("%s while loading: stopping as soon as the model that loads is there", number.name)
            starting.cancel()
        else:
            log.info(
                "%s: finishing running replies, at most %g s", number.name, settings.server.drain_seconds
            )

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    try:
        async with _listening(settings, load_engines(settings), None, keys) as url:
            starting = None
            log.info("listening on %s/v1/realtime", url)
            await stop.wait()
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    log.info("stopped")


def running(
    settings: Settings,
    *,
    record: Record | None = None,
    engines: AbstractAsyncContextManager[Engines] | None = None,
    keys: Path | None = None,
) -> AbstractAsyncContextManager[str]:
    """Run the server in this event loop, on a free port of this machine; gives its base URL, "ws://host:port".

    record: is given the trace of every turn. engines: instead of the ones the settings name. keys: the file of
    those who may come in; without it everybody on this machine may, whatever `auth.keys` says.

    Leaving it drains the server as a signal would. Raises SetupError.
    """
    here = settings.server.model_copy(update={"host": "127.0.0.1", "port": 0})
    settings = settings.model_copy(update={"server": here})
    watched = None if keys is None else WatchedKeys(keys, time.monotonic)
    return _listening(settings, engines or load_engines(settings), record, watched)


@asynccontextmanager
async def _listening(
    settings: Settings,
    engines: AbstractAsyncContextManager[Engines],
    record: Record | None,
    keys: WatchedKeys | None,
) -> AsyncGenerator[str, None]:
    with _bound(settings.server) as listener:
        async with engines as models:
            app = Application(settings, models, record=record, keys=keys)
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
            sampling = asyncio.create_task(app.monitor.run(), name="monitor")
            try:
                await server.listening.wait()
                host, port = listener.getsockname()[:2]
                yield f"ws://{f'[{host}]' if ':' in host else host}:{port}"
            finally:
                await app.drain(settings.server.drain_seconds)
                server.should_exit = True
                await serving
                sampling.cancel()
                await asyncio.wait([sampling])


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


def _not_an_answer_cut_off(record: logging.LogRecord) -> bool:
    """uvicorn calls it an error when an answer stays unfinished; we do that on purpose, and have said why."""
    return "without completing response" not in record.getMessage()


logging.getLogger("uvicorn.error").addFilter(_not_an_answer_cut_off)


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
