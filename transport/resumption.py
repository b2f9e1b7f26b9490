"""Sessions that outlive their connection, for clients that ask for it.

    ?resume=true             session.created carries `resume`: a token, and the seconds for which it is good
    the connection breaks    the session goes on, and what it says waits
    ?resume=TOKEN            session.created with the next token, then every event that no socket had taken;
                             with &after=EVENT_ID, every event after that one
    nobody comes             after those seconds the session ends

A token is good once, for the key that it was given to; it is as good while the old connection seems to stand,
which a client that changed its network knows to be dead before we do. Only hashes of tokens are kept. A client
that closes with 1000 has ended its session.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from ..pipeline.errors import BadRequest
from ..pipeline.events import Command, Failed, Output, OutputAudio, ResponseDone
from ..pipeline.logs import where
from .keys import digest

if TYPE_CHECKING:
    from .realtime import RealtimeCodec
    from .schema import Json

PREFIX = "resume_"

MOST_EVENTS = 4096
MOST_CHARACTERS = 4_000_000
"""Of a session's latest events that are kept to be told again: some minutes of speech."""

CLOSE_TIMEOUT = 10.0
"""Seconds in which a session must have freed its engines."""

Ending = Literal["over", "lost", "moved"]
"""Why a connection ended: the session is over; the client was lost; another connection took it."""

log = logging.getLogger("antiphon.server")


class Conversation(Protocol):
    """What the shell needs of a `pipeline.session.Session`."""

    id: str

    async def run(self) -> None: ...
    async def send(self, command: Command) -> None: ...
    def refuse(self, failed: Failed) -> None: ...
    def outputs(self) -> AsyncIterator[Output]: ...
    async def drain(self, seconds: float) -> None: ...
    def caught_up(self, item_id: str, seconds: float) -> None: ...
    async def aclose(self) -> None: ...


@dataclass(slots=True)
class _Told:
    """text: None for sound that nobody shall hear any more. audio: the item, and where in its sound this ends."""

    event_id: str
    text: str | None
    response_id: str | None
    audio: tuple[str, float] | None


class Sent:
    """A session's latest events, each from before it goes to a socket; what is beyond the bounds is forgotten."""

    def __init__(self, *, most_events: int = MOST_EVENTS, most_characters: int = MOST_CHARACTERS) -> None:
        self._most_events, self._most_characters = most_events, most_characters
        self._events: deque[_Told] = deque()
        self._characters = 0
        self._first = 0
        self._taken = 0
        """Number of the oldest event kept, and how many a socket took."""

    def add(
        self,
        event_id: str,
        text: str,
        *,
        response_id: str | None = None,
        audio: tuple[str, float] | None = None,
    ) -> None:
        """response_id, audio: of a piece of sound, whose it is; the item, and the second of it where it ends."""
        self._events.append(_Told(event_id, text, response_id, audio))
        self._characters += len(text)
        while len(self._events) > self._most_events or self._characters > self._most_characters:
            self._characters -= len(self._events.popleft().text or "")
            self._first += 1

    def took(self) -> None:
        """A socket took the next one."""
        self._taken += 1

    def told_again(self) -> None:
        """All of them are on their way to a socket."""
        self._taken = self._first + len(self._events)

    def hush(self, response_id: str) -> None:
        """A response was cut off: its sound is not told again."""
        for told in self._events:
            if told.audio is not None and told.response_id == response_id and told.text is not None:
                self._characters -= len(told.text)
                told.text = None

    def after(self, event_id: str | None) -> tuple[list[str], tuple[str, float] | None]:
        """(what to tell again, what the client has of the latest sound).

        event_id: the last that the client has; None for what the sockets took. Raises BadRequest for one that
        is not kept.
        """
        if event_id is None:
            at = max(0, self._taken - self._first)
        else:
            numbers = [number for number, told in enumerate(self._events) if told.event_id == event_id]
            if not numbers:
                raise BadRequest(
                    "The event named by 'after' is not kept; resume without it to get what was not sent yet.",
                    param="after",
                    code="event_not_kept",
                )
            at = numbers[0] + 1
        events = list(self._events)
        heard = next((told.audio for told in reversed(events[:at]) if told.audio is not None), None)
        return [told.text for told in events[at:] if told.text is not None], heard


def note(sent: Sent, output: Output, events: Sequence[Json], texts: Sequence[str]) -> None:
    """Keep what becomes of one output, before any of it goes to a socket."""
    for number, (event, text) in enumerate(zip(events, texts, strict=True), 1):
        response_id, audio = None, None
        if isinstance(output, OutputAudio):
            share = number / len(events)
            end = output.start + share * len(output.samples) / output.sample_rate
            response_id, audio = output.response_id, (output.item_id, end)
        sent.add(event["event_id"], text, response_id=response_id, audio=audio)
    if isinstance(output, ResponseDone) and output.response.status == "cancelled":
        sent.hush(output.response.id)


@dataclass(eq=False, slots=True)
class Kept:
    """A session that may be resumed. key: whose it is. ends_at: event loop time of its longest life.

    ended: called once when it is over. task: the session's life.
    """

    session: Conversation
    codec: RealtimeCodec
    key: str
    ends_at: float
    ended: Callable[[], None]
    sent: Sent = field(default_factory=Sent)
    task: asyncio.Task[None] | None = None
    token: str = ""
    """Its hash."""
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    """Set for the connection that has it when another takes it over."""
    attached: asyncio.Event | None = field(default_factory=asyncio.Event)
    """Set when the connection that has it has let go; None when none has it."""
    timer: asyncio.Task[None] | None = None

    async def life(self) -> None:
        """Until the session ends; raises what it died of."""
        assert self.task is not None
        await asyncio.shield(self.task)

    @property
    def over(self) -> bool:
        return self.task is not None and self.task.done()

    async def aclose(self) -> None:
        """End the session and wait until its engines are free. Idempotent."""
        await self.session.aclose()
        if self.task is None:
            return
        _, running = await asyncio.wait([self.task], timeout=CLOSE_TIMEOUT)
        if running:
            self.task.cancel()
            await asyncio.wait([self.task])
        if not self.task.cancelled() and (error := self.task.exception()) is not None:
            log.error("session %s failed: %s", self.session.id, where(error))


class Resumption:
    """Who may come back. seconds: for which a token is good; 0 for nobody."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._kept: set[Kept] = set()

    @property
    def away(self) -> int:
        """Sessions that are kept without a connection."""
        return sum(kept.attached is None for kept in self._kept)

    def begin(
        self,
        session: Conversation,
        codec: RealtimeCodec,
        key: str,
        ends_at: float,
        ended: Callable[[], None],
    ) -> Kept:
        """Start the session's life, apart from any connection's. ended: called when it is over."""
        kept = Kept(session, codec, key, ends_at, ended)
        kept.task = asyncio.create_task(session.run(), name=f"{session.id}-kept")
        self._kept.add(kept)
        return kept

    def token(self, kept: Kept) -> str:
        """A new token for it; the one before is good no more."""
        token = PREFIX + secrets.token_urlsafe(32)
        kept.token = digest(token)
        return token

    def find(self, token: str, key: str) -> Kept:
        """The session whose token this is. Raises BadRequest where there is none for this key."""
        hashed = digest(token)
        found = [kept for kept in self._kept if hmac.compare_digest(kept.token, hashed)]
        if not found or found[0].over or not hmac.compare_digest(found[0].key.encode(), key.encode()):
            raise BadRequest(
                "No session waits for this token: it was used, its time is over, or the session has ended. "
                "Open a new one with ?resume=true.",
                param="resume",
                code="session_not_resumable",
            )
        return found[0]

    async def attach(self, kept: Kept) -> None:
        """Take it from whoever has it. Cancelled, the client counts as lost again."""
        if kept.timer is not None:
            kept.timer.cancel()
            kept.timer = None
        if kept.attached is not None:
            kept.moved.set()
            try:
                await kept.attached.wait()
            except asyncio.CancelledError:
                await self.let_go(kept, "lost")
                raise
        kept.moved = asyncio.Event()
        kept.attached = asyncio.Event()

    async def let_go(self, kept: Kept, why: Ending) -> None:
        """Its connection has ended. A client that was lost is waited for."""
        attached, kept.attached = kept.attached, None
        if attached is not None:
            attached.set()
        if why == "over":
            await self.end(kept)
        elif why == "lost":
            kept.timer = asyncio.create_task(self._expire(kept), name=f"{kept.session.id}-expiry")

    async def _expire(self, kept: Kept) -> None:
        loop = asyncio.get_running_loop()
        left = max(0.0, min(self.seconds, kept.ends_at - loop.time()))
        assert kept.task is not None
        await asyncio.wait([kept.task], timeout=left)
        log.info("session %s was not resumed", kept.session.id)
        await self.end(kept)

    async def end(self, kept: Kept) -> None:
        """End a session for good. Idempotent."""
        self._kept.discard(kept)
        kept.token = ""
        try:
            await kept.aclose()
        finally:
            kept.ended()

    async def aclose(self) -> None:
        """End all sessions that nobody is connected to."""
        async with asyncio.TaskGroup() as group:
            for kept in [kept for kept in self._kept if kept.attached is None]:
                if kept.timer is not None:
                    kept.timer.cancel()
                group.create_task(self.end(kept))
