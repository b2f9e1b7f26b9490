"""One websocket, one session: the shell around the codec.

    socket ─▶ read ─▶ codec.decode ─▶ session.send        waits while the inbox is full, and so stops reading
    socket ◀─ write ◀─ codec.encode ◀─ session.outputs    waits while the socket is full, for send_timeout

A connection is one task group of three: the session, the reader, the writer. Whichever ends first ends the
others, and leaving the group frees the engines. Nothing is queued here: what waits for a slow client waits in
the session's outbox, where a barge-in can flush it.

    why it ends                          close   error event before it
    the client leaves                    -
    no session is free                   1013    session_limit_reached
    answers would come too late          1013    overloaded
    the server is shutting down          1012    server_draining
    the same, after the running reply    1001
    session.max_seconds are over         1001    session_expired
    the client does not read             1008    (it would not read that either)
    the key's audio is used up           1008    rate_limit_exceeded
    a fault of ours                      1011    internal_error

Who may come in at all is decided before the socket is accepted (`auth.py`, `surface.py`), as an HTTP status.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect

from ..pipeline.admission import Refused
from ..pipeline.audio import RECOGNISER_RATE
from ..pipeline.errors import AntiphonError, EngineFailed, Overloaded, RateLimited
from ..pipeline.events import AppendAudio, Command, Failed, Output, OutputAudio, ResponseDone, SessionConfig
from ..pipeline.logs import where
from ..pipeline.metrics import Metrics
from ..pipeline.monitor import Monitor
from ..pipeline.outbox import NotReading
from ..pipeline.settings import Settings
from .auth import Client
from .realtime import RealtimeCodec, error_event
from .schema import Json
from .session_object import Offer, SessionObject

LONG_MESSAGE = 2**17
"""Characters; a longer message is decoded on a thread, so that no other session waits for it."""

CLOSE_TIMEOUT = 1.0
"""Seconds in which a last event and the close frame must find room in the socket's buffer."""

LEAVE_TIMEOUT = 5.0
"""Seconds in which a drained session's last events must be read."""

log = logging.getLogger("antiphon.server")


class SessionLimit(Overloaded):
    code = "session_limit_reached"


class TooBusy(Overloaded):
    """One session more, and all of them would wait longer than `slo.voice_to_voice_ms`."""


class Draining(Overloaded):
    code = "server_draining"


class Conversation(Protocol):
    """What the shell needs of a `pipeline.session.Session`."""

    id: str

    async def run(self) -> None: ...
    async def send(self, command: Command) -> None: ...
    def refuse(self, failed: Failed) -> None: ...
    def outputs(self) -> AsyncIterator[Output]: ...
    async def drain(self, seconds: float) -> None: ...
    async def aclose(self) -> None: ...


class Realtime:
    """The endpoint `/v1/realtime`, and who is connected to it.

    open_session: makes a session with this configuration, not yet running. time: Unix seconds.
    """

    def __init__(
        self,
        settings: Settings,
        offer: Offer,
        open_session: Callable[[SessionConfig], Conversation],
        metrics: Metrics,
        monitor: Monitor,
        *,
        new_id: Callable[[str], str],
        time: Callable[[], float],
    ) -> None:
        self.draining = False
        self._settings = settings
        self._offer = offer
        self._open_session = open_session
        self._metrics = metrics
        self._monitor = monitor
        self._new_id = new_id
        self._time = time
        self._connections: set[_Connection] = set()

    async def endpoint(self, websocket: WebSocket, client: Client) -> None:
        """Serve one client to its end. Cancelling ends its session and frees its engines.

        Raises RateLimited before the socket is accepted, when the client's key has what it may have.
        """
        client.spend_audio(0)
        client.meter.open_session()
        try:
            await self._serve(websocket, client)
        finally:
            client.meter.close_session()

    async def _serve(self, websocket: WebSocket, client: Client) -> None:
        offered: Sequence[str] = websocket.scope["subprotocols"]
        request_id: str = websocket.scope["request_id"]
        await websocket.accept(
            subprotocol="realtime" if "realtime" in offered else None,
            headers=[(b"x-request-id", request_id.encode())],
        )
        refusal = self._refusal(websocket)
        if refusal is not None:
            error, code = refusal
            self._metrics.refused.labels(error.code).inc()
            hint = f"Retry-After: {error.retry_after}" if isinstance(error, Overloaded) else None
            await farewell(websocket, code, error_event(error, self._new_id), hint)
            return
        asked = websocket.query_params
        kind = "transcription" if asked.get("intent") == "transcription" else "realtime"
        begun = SessionObject.begun(self._offer, asked.get("model"), client.preset, kind)
        session = self._open_session(begun.config)
        limit = self._settings.session.max_seconds
        codec = RealtimeCodec(
            session.id,
            self._offer,
            new_id=self._new_id,
            expires_at=round(self._time() + limit),
            begun=begun,
        )
        connection = _Connection(
            websocket, session, codec, self._metrics, self._settings, self._new_id, client
        )
        self._connections.add(connection)
        self._monitor.sessions(len(self._connections))
        log.info("session %s opened", session.id)
        try:
            with self._metrics.sessions.track_inprogress():
                await connection.run()
        finally:
            self._connections.discard(connection)
            self._monitor.sessions(len(self._connections))
            connection.ended.set()
            log.info("session %s closed", session.id)

    async def drain(self, seconds: float) -> None:
        """Refuse new sessions; let running replies finish for at most `seconds`, then end every session."""
        self.draining = True
        async with asyncio.TaskGroup() as group:
            for connection in self._connections:
                group.create_task(connection.leave(seconds))

    def _refusal(self, websocket: WebSocket) -> tuple[AntiphonError, int] | None:
        """Why this client cannot have a session, and the close code that says so."""
        limit = self._settings.server.max_sessions
        if self.draining:
            return Draining("The server is shutting down; connect again in a moment."), 1012
        if len(self._connections) >= limit:
            return SessionLimit(
                f"All {limit} sessions are taken (server.max_sessions); try again later."
            ), 1013
        decision = self._monitor.decide()
        if isinstance(decision, Refused):
            return TooBusy(
                f"With one session more, replies would come after {decision.predicted:.1f} s "
                f"(slo.voice_to_voice_ms); try again in {decision.retry_after} s.",
                retry_after=decision.retry_after,
            ), 1013
        return None


class _Connection:
    """One client and its session, while they last."""

    def __init__(
        self,
        websocket: WebSocket,
        session: Conversation,
        codec: RealtimeCodec,
        metrics: Metrics,
        settings: Settings,
        new_id: Callable[[str], str],
        client: Client,
    ) -> None:
        self.ended = asyncio.Event()
        self._websocket = websocket
        self._session = session
        self._codec = codec
        self._metrics = metrics
        self._send_timeout = settings.server.send_timeout
        self._max_seconds = settings.session.max_seconds
        self._new_id = new_id
        self._client = client
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        self._task = asyncio.current_task()
        code, error, gone = 1001, None, False
        try:
            async with asyncio.timeout(self._max_seconds), asyncio.TaskGroup() as group:
                group.create_task(self._session.run(), name="session")
                reader = group.create_task(self._read(), name="reader")
                await self._write()
                reader.cancel()
        except* WebSocketDisconnect:
            gone = True
        except* NotReading as group:
            log.warning("session %s: the client does not read: %s", self._session.id, group.exceptions[0])
            code = 1008
        except* RateLimited as group:
            code, error = 1008, _first(group)
        except* TimeoutError:
            error = AntiphonError("Your session hit its maximum duration.", code="session_expired")
        except* Exception as group:
            log.error("session %s failed: %s", self._session.id, where(group))
            code = 1011
            error = EngineFailed(
                "The session failed; the server's log has the reason.", code="internal_error"
            )
        if not gone:
            last = None if error is None else error_event(error, self._new_id)
            await farewell(self._websocket, code, last)

    async def leave(self, seconds: float) -> None:
        """Let the running reply finish, for at most `seconds`, and end; the client may leave before.

        What waits for the client then has LEAVE_TIMEOUT to be read in; a slower one is cut off.
        """
        await self._session.drain(seconds)
        await self._session.aclose()
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT):
                await self.ended.wait()
        except TimeoutError:
            log.warning("session %s: the client reads too slowly to be waited for", self._session.id)
            if self._task is not None:
                self._task.cancel()
            await self.ended.wait()

    async def _read(self) -> None:
        """Hand on what the client says. Raises WebSocketDisconnect when it has left."""
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message.get("code", 1005))
            data: str | bytes = message["bytes"] if message.get("text") is None else message["text"]
            if len(data) > LONG_MESSAGE:
                asked = await asyncio.to_thread(self._codec.decode, data)
            else:
                asked = self._codec.decode(data)
            if isinstance(asked, Failed):
                # Not from here: a client whose socket is full goes on being heard.
                self._session.refuse(asked)
                continue
            for command in asked:
                if isinstance(command, AppendAudio):
                    self._client.spend_audio(len(command.samples) / RECOGNISER_RATE)
                await self._session.send(command)

    async def _write(self) -> None:
        """Tell the client everything, until the session's outputs end."""
        await self._send(self._codec.created())
        async for output in self._session.outputs():
            await self._tell(output)

    async def _tell(self, output: Output) -> None:
        match output:
            case Failed(error):
                self._metrics.errors.labels(error.code or error.type).inc()
            case OutputAudio(samples=samples, sample_rate=rate):
                self._client.spend_audio(len(samples) / rate)
            case ResponseDone(response):
                self._metrics.responses.labels(response.status).inc()
            case _:
                pass
        await self._send(self._codec.encode(output))

    async def _send(self, events: Iterable[Json]) -> None:
        """Raises NotReading when the socket takes nothing for `send_timeout`."""
        for event in events:
            try:
                async with asyncio.timeout(self._send_timeout):
                    await self._websocket.send_text(json.dumps(event))
            except TimeoutError:
                raise NotReading(
                    f"nothing could be sent for {self._send_timeout:.0f} s (server.send_timeout)"
                ) from None


def _first(group: BaseExceptionGroup[RateLimited]) -> RateLimited:
    error = group.exceptions[0]
    return error if isinstance(error, RateLimited) else _first(error)


async def farewell(
    websocket: WebSocket, code: int, last: Json | None = None, reason: str | None = None
) -> None:
    """A last event and the close frame, as far as the socket still takes them.

    reason: goes into the close frame, at most 123 bytes.
    """
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT):
            if last is not None:
                await websocket.send_text(json.dumps(last))
            await websocket.close(code, reason)
    except (TimeoutError, WebSocketDisconnect, RuntimeError):
        pass
