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
    resuming, and there is nothing to    1008    session_not_resumable, event_not_kept
    another connection resumed it        1001    -

A session that is kept for its client (`resumption.py`) lives on when the client is lost; its connection is
a group of two, and of one who watches the session.

Who may come in at all is decided before the socket is accepted (`auth.py`, `surface.py`), as an HTTP status.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from starlette.websockets import WebSocket, WebSocketDisconnect

from ..pipeline.admission import Refused
from ..pipeline.audio import RECOGNISER_RATE
from ..pipeline.errors import AntiphonError, BadRequest, EngineFailed, Overloaded, RateLimited
from ..pipeline.events import AppendAudio, Failed, Output, OutputAudio, ResponseDone, SessionConfig
from ..pipeline.logs import where
from ..pipeline.metrics import Metrics
from ..pipeline.monitor import Monitor
from ..pipeline.outbox import NotReading
from ..pipeline.settings import Settings
from .auth import Client
from .realtime import RealtimeCodec, error_event
from .resumption import PREFIX, Conversation, Ending, Kept, Resumption, note
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


class _Moved(Exception):
    """Another connection has the session now."""


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
        self._resumption = Resumption(settings.session.resume_seconds)

    async def endpoint(self, websocket: WebSocket, client: Client) -> None:
        """Serve one client to its end. Cancelling ends its session and frees its engines.

        Raises RateLimited before the socket is accepted, when the client's key has what it may have.
        """
        client.spend_audio(0)
        asked = websocket.query_params.get("resume", "")
        if asked.startswith(PREFIX):
            await self._accept(websocket)
            try:
                await self._resume(websocket, client, asked)
            except BadRequest as error:
                await farewell(websocket, 1008, error_event(error, self._new_id))
            return
        client.meter.open_session()
        with ExitStack() as place:
            place.callback(client.meter.close_session)
            await self._accept(websocket)
            await self._serve(websocket, client, place, keep=asked == "true")

    async def _accept(self, websocket: WebSocket) -> None:
        offered: Sequence[str] = websocket.scope["subprotocols"]
        request_id: str = websocket.scope["request_id"]
        await websocket.accept(
            subprotocol="realtime" if "realtime" in offered else None,
            headers=[(b"x-request-id", request_id.encode())],
        )

    async def _serve(self, websocket: WebSocket, client: Client, place: ExitStack, *, keep: bool) -> None:
        """A new session. place: what the key has taken for it. keep: the client may want to resume it."""
        refusal = self._refusal()
        if refusal is not None:
            error, code = refusal
            self._metrics.refused.labels(error.code).inc()
            hint = f"Retry-After: {error.retry_after}" if isinstance(error, Overloaded) else None
            await farewell(websocket, code, error_event(error, self._new_id), hint)
            return
        session, codec = self._begin(websocket, client)
        ends_at = asyncio.get_running_loop().time() + self._settings.session.max_seconds
        kept = None
        if keep and self._resumption.seconds > 0:
            place.callback(self._left)
            kept = self._resumption.begin(session, codec, client.key, ends_at, place.pop_all().close)
        log.info("session %s opened", session.id)
        await self._connect(websocket, client, session, codec, kept, ends_at, self._created(codec, kept))

    def _begin(self, websocket: WebSocket, client: Client) -> tuple[Conversation, RealtimeCodec]:
        asked = websocket.query_params
        kind = "transcription" if asked.get("intent") == "transcription" else "realtime"
        begun = SessionObject.begun(self._offer, asked.get("model"), client.preset, kind)
        session = self._open_session(begun.config)
        codec = RealtimeCodec(
            session.id,
            self._offer,
            new_id=self._new_id,
            expires_at=round(self._time() + self._settings.session.max_seconds),
            begun=begun,
        )
        return session, codec

    async def _resume(self, websocket: WebSocket, client: Client, token: str) -> None:
        """Raises BadRequest when there is nothing to resume."""
        kept = self._resumption.find(token, client.key)
        after = websocket.query_params.get("after")
        kept.sent.after(after)  # refused before the token is used up
        created = self._created(kept.codec, kept)
        await self._resumption.attach(kept)
        again, heard = kept.sent.after(after)
        kept.sent.told_again()
        if heard is not None:
            kept.session.caught_up(*heard)
        log.info("session %s resumed", kept.session.id)
        await self._connect(
            websocket, client, kept.session, kept.codec, kept, kept.ends_at, [*created, *again]
        )

    def _created(self, codec: RealtimeCodec, kept: Kept | None) -> list[str]:
        events = codec.created()
        if kept is not None:
            token = self._resumption.token(kept)
            events[0]["resume"] = {"token": token, "seconds": self._resumption.seconds}
        return [json.dumps(event) for event in events]

    async def _connect(
        self,
        websocket: WebSocket,
        client: Client,
        session: Conversation,
        codec: RealtimeCodec,
        kept: Kept | None,
        ends_at: float,
        first: Sequence[str],
    ) -> None:
        """Serve the session over this socket to the end of either. first: events to begin with, as text."""
        connection = _Connection(
            websocket, session, codec, self._metrics, self._settings, self._new_id, client, kept, ends_at
        )
        self._connections.add(connection)
        self._monitor.sessions(self._taken())
        why: Ending = "over"
        try:
            with self._metrics.sessions.track_inprogress():
                why = await connection.run(first)
        finally:
            self._connections.discard(connection)
            if kept is not None:
                await self._resumption.let_go(kept, "over" if self.draining else why)
            self._monitor.sessions(self._taken())
            connection.ended.set()
            log.info("session %s %s", session.id, "closed" if kept is None else why)

    def _taken(self) -> int:
        """Sessions that are open, kept ones among them."""
        return len(self._connections) + self._resumption.away

    def _left(self) -> None:
        """A kept session has ended."""
        self._monitor.sessions(self._taken())

    async def drain(self, seconds: float) -> None:
        """Refuse new sessions; let running replies finish for at most `seconds`, then end every session."""
        self.draining = True
        async with asyncio.TaskGroup() as group:
            group.create_task(self._resumption.aclose())
            for connection in self._connections:
                group.create_task(connection.leave(seconds))

    def _refusal(self) -> tuple[AntiphonError, int] | None:
        """Why this client cannot have a session, and the close code that says so."""
        limit = self._settings.server.max_sessions
        if self.draining:
            return Draining("The server is shutting down; connect again in a moment."), 1012
        if self._taken() >= limit:
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
        kept: Kept | None,
        ends_at: float,
    ) -> None:
        self.ended = asyncio.Event()
        self._websocket = websocket
        self._session = session
        self._codec = codec
        self._metrics = metrics
        self._send_timeout = settings.server.send_timeout
        self._ends_at = ends_at
        self._kept = kept
        self._new_id = new_id
        self._client = client
        self._task: asyncio.Task[None] | None = None

    async def run(self, first: Sequence[str]) -> Ending:
        """first: events to begin with, as text. Returns why it ended, for the session's sake."""
        self._task = asyncio.current_task()
        code, error, gone = 1001, None, False
        why: Ending = "over"
        try:
            async with asyncio.timeout_at(self._ends_at), asyncio.TaskGroup() as group:
                if self._kept is None:
                    group.create_task(self._session.run(), name="session")
                    others = []
                else:
                    life, moved = self._kept.life(), self._moved(self._kept.moved)
                    others = [group.create_task(life, name="life"), group.create_task(moved, name="moved")]
                others.append(group.create_task(self._read(), name="reader"))
                await self._write(first)
                for task in others:
                    task.cancel()
        except* WebSocketDisconnect as group:
            gone = True
            why = "over" if _left(group) else "lost"
        except* _Moved:
            why = "moved"
        except* NotReading as group:
            log.warning("session %s: the client does not read: %s", self._session.id, group.exceptions[0])
            code = 1008
            why = "lost"
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
        return why

    async def _moved(self, moved: asyncio.Event) -> None:
        await moved.wait()
        raise _Moved

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

    async def _write(self, first: Sequence[str]) -> None:
        """Tell the client everything, until the session's outputs end."""
        for text in first:
            await self._send(text)
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
        events = self._codec.encode(output)
        texts = [json.dumps(event) for event in events]
        if self._kept is not None:
            note(self._kept.sent, output, events, texts)
        for text in texts:
            await self._send(text)
            if self._kept is not None:
                self._kept.sent.took()

    async def _send(self, text: str) -> None:
        """Raises NotReading when the socket takes nothing for `send_timeout`."""
        try:
            async with asyncio.timeout(self._send_timeout):
                await self._websocket.send_text(text)
        except TimeoutError:
            raise NotReading(
                f"nothing could be sent for {self._send_timeout:.0f} s (server.send_timeout)"
            ) from None


def _left(group: BaseExceptionGroup[WebSocketDisconnect]) -> bool:
    """Whether the client closed because it was done."""
    error = group.exceptions[0]
    return _left(error) if isinstance(error, BaseExceptionGroup) else error.code == 1000


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
