"""A client as a person has one: a microphone that never hurries and never stops, and a loudspeaker.

It speaks OpenAI's Realtime protocol (GA) and is the ruler of every latency figure here, so what it takes
for granted is written down.

The microphone. It runs from the first clip on, by an absolute schedule: sample i of the session is spoken
at `started + i / rate`, and frame n leaves when its last sample has been spoken, at
`started + (n + 1) * FRAME`. A late frame does not move the next one. Where no clip is left, it records
silence.

The loudspeaker. It has no jitter buffer: the first delta of a reply plays the moment it arrives, each
later one when the one before it has ended, or on its arrival if that is later (an underrun).

Voice-to-voice is the moment at which the first reply sample of at least -50 dBFS would leave that
loudspeaker, minus the moment at which the last speech sample of the clip was spoken into that microphone.
So it contains the framing of the input, the network, every wait for silence, and silence at the head of
the reply's speech.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from ..pipeline.audio import first_above, pcm16_to_samples, samples_to_pcm16
from ..pipeline.events import Samples

SAMPLE_RATE = 24_000
"""Hz of both directions: the only rate that the protocol knows for PCM."""

FRAME = 0.02
"""Seconds of one microphone frame; 20 ms is what browsers and telephones send."""

AUDIBLE_DBFS = -50.0
"""A sample of this level is heard; below lie the voice's own head of silence and its noise floor."""

Event = dict[str, Any]
"""One server event as it came, decoded from JSON."""


class ClientError(Exception):
    """The service did not do its part: no connection, an early close, or nothing within the time allowed."""


@dataclass(frozen=True, slots=True)
class Clip:
    """One stretch of sound on the microphone's timeline.

    start: moment at which its first sample is spoken, on the clock of `Microphone.started`.
    offset: seconds of audio recorded before it.
    """

    start: float
    offset: float
    samples: Samples
    sample_rate: int = SAMPLE_RATE

    def moment(self, seconds: float) -> float:
        """When what lies `seconds` into this clip is spoken."""
        return self.start + seconds

    @property
    def end(self) -> float:
        return self.start + len(self.samples) / self.sample_rate


class Microphone:
    """The timeline of what is spoken, cut into frames. Reads no clock: `started` is given.

    Clips follow one another; where nobody speaks there is silence.
    """

    def __init__(self, started: float, sample_rate: int = SAMPLE_RATE) -> None:
        self.started = started
        self.sample_rate = sample_rate
        self.frame_samples = round(FRAME * sample_rate)
        self._frames = 0
        self._ahead = np.zeros(0, np.float32)

    @property
    def due(self) -> float:
        """When the next frame leaves: as its last sample has been spoken."""
        return self.started + (self._frames + 1) * self.frame_samples / self.sample_rate

    def play(self, samples: Samples) -> Clip:
        """Speak `samples` behind whatever is still to be spoken."""
        offset = (self._frames * self.frame_samples + len(self._ahead)) / self.sample_rate
        self._ahead = np.concatenate([self._ahead, samples.astype(np.float32)])
        return Clip(self.started + offset, offset, samples, self.sample_rate)

    def frame(self) -> Samples:
        """The next frame, always `frame_samples` long."""
        frame, self._ahead = self._ahead[: self.frame_samples], self._ahead[self.frame_samples :]
        self._frames += 1
        return np.pad(frame, (0, self.frame_samples - len(frame)))


@dataclass
class Loudspeaker:
    """What the loudspeaker does with one reply. Reads no clock: arrival is an argument.

    heard: moment of the first sample of AUDIBLE_DBFS or more, None while all was silence.
    underruns, gap: how often the loudspeaker ran dry after the first delta, and for how long in all, seconds.
    """

    sample_rate: int = SAMPLE_RATE
    started: float | None = None
    ends: float = 0.0
    heard: float | None = None
    underruns: int = 0
    gap: float = 0.0
    chunks: list[Samples] = field(default_factory=list[Samples])

    def add(self, samples: Samples, arrived: float) -> None:
        """Play the next delta, which came at `arrived`."""
        if self.started is None:
            self.started = start = arrived
        else:
            start = max(self.ends, arrived)
            if start > self.ends:
                self.underruns += 1
                self.gap += start - self.ends
        if self.heard is None and (index := first_above(samples, AUDIBLE_DBFS)) is not None:
            self.heard = start + index / self.sample_rate
        self.ends = start + len(samples) / self.sample_rate
        self.chunks.append(samples)

    @property
    def samples(self) -> Samples:
        return np.concatenate(self.chunks) if self.chunks else np.zeros(0, np.float32)


@dataclass
class Reply:
    """One response of the service as it comes in. status is None until `response.done`."""

    id: str
    created: float
    sound: Loudspeaker = field(default_factory=Loudspeaker)
    transcript: str = ""
    status: str | None = None
    problem: str | None = None


@dataclass
class Turn:
    """One turn of the user as the service heard it; moments are arrivals of its events.

    transcript is None until the transcription is completed (or has failed).
    """

    item_id: str
    committed: float
    transcript: str | None = None


class RealtimeClient:
    """One session, as an async context manager: connected and recording inside, closed outside.

    url: the service's base (`ws://host:port`) or the whole address of its realtime endpoint.
    timeout: seconds for the connection and for each answer of the protocol's own; waits for speech take
        their own limit. key: an API key of the service.

    events: every server event with the moment of its arrival. turns, replies (by id, oldest first), errors:
        the same, put together.
    lateness: seconds by which the worst microphone frame left after it was due, a check on the ruler itself.

    All moments are on the event loop's clock. Raises ClientError when the service cannot be reached, closes
    the connection, or does not answer in time. Cancelling any wait leaves the session as it is; leaving the
    context ends it.
    """

    def __init__(self, url: str, *, timeout: float = 10.0, key: str | None = None) -> None:
        self.url = url if "/v1/" in url else url.rstrip("/") + "/v1/realtime"
        self.timeout = timeout
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self.events: list[tuple[float, Event]] = []
        self.turns: dict[str, Turn] = {}
        self.replies: dict[str, Reply] = {}
        self.errors: list[str] = []
        self.lateness = 0.0
        self.session_id = ""
        self._microphone: Microphone | None = None
        self._closed: str | None = None
        self._news = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        try:
            self._socket: ClientConnection = await connect(
                self.url,
                open_timeout=self.timeout,
                close_timeout=2.0,
                max_size=None,
                compression=None,
                additional_headers=self._headers,
            )
        except (OSError, TimeoutError, WebSocketException) as error:
            raise ClientError(f"cannot connect to {self.url}: {error}") from error
        self._loop = asyncio.get_running_loop()
        self._tasks = [asyncio.create_task(self._listen(), name="client-listen")]
        try:
            created = await self.event("session.created")
            self.session_id = str(created["session"].get("id", ""))
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._socket.close()

    # --- what the user does -----------------------------------------------------------------------------

    async def send(self, type: str, **fields: Any) -> None:
        """Send one client event."""
        try:
            await self._socket.send(json.dumps({"type": type, **fields}))
        except ConnectionClosed as error:
            raise ClientError(f"the service closed the connection: {error}") from error

    async def configure(self, **session: Any) -> Event:
        """Update the session and return it as the service then has it."""
        seen = len(self.events)
        await self.send("session.update", session={"type": "realtime", **session})
        return (await self.event("session.updated", since=seen))["session"]

    def play(self, samples: Samples) -> Clip:
        """Speak `samples` (SAMPLE_RATE, float32 mono) at the pace of speech; returns at once.

        The microphone starts with the first call, and then records silence wherever no clip is left.
        """
        if self._microphone is None:
            self._microphone = Microphone(self._loop.time())
            self._tasks.append(asyncio.create_task(self._record(self._microphone), name="client-microphone"))
        return self._microphone.play(samples)

    async def spoken(self, clip: Clip) -> None:
        """Wait until the last sample of the clip has been spoken."""
        await asyncio.sleep(max(0.0, clip.end - self._loop.time()))

    # --- what the user waits for --------------------------------------------------------------------------

    async def until(self, happened: Callable[[], bool], *, timeout: float, what: str) -> None:
        """Wait until `happened()`; asked after every server event. `what` names it in the error."""
        try:
            async with asyncio.timeout(timeout), self._news:
                while not happened():
                    if self._closed is not None:
                        raise ClientError(f"{self._closed}, while waiting for {what}")
                    await self._news.wait()
        except TimeoutError:
            raise ClientError(f"no {what} within {timeout:g} s") from None

    async def event(self, type: str, *, since: int = 0, timeout: float | None = None) -> Event:
        """The first event of this type from number `since` on. Raises ClientError on an `error` event."""
        found: list[Event] = []

        def arrived() -> bool:
            for _, event in self.events[since:]:
                if event["type"] == type:
                    found.append(event)
                    return True
                if event["type"] == "error":
                    raise ClientError(f"the service refused: {event['error'].get('message')}")
            return False

        await self.until(arrived, timeout=timeout or self.timeout, what=type)
        return found[0]

    async def reply_after(self, moment: float, *, timeout: float) -> Reply | None:
        """The first reply created after `moment` that is heard.

        None when none is heard in time (`timeout` counts from now), or none will be, as no words were found
        in a turn committed after `moment`. Replies that end without a sound, or are cancelled, are passed over.
        """
        found: list[Reply] = []

        def heard() -> bool:
            later = [reply for reply in self.replies.values() if reply.created > moment]
            found[:] = [r for r in later if r.sound.heard is not None and r.status != "cancelled"]
            wordless = any(t.committed > moment and t.transcript == "" for t in self.turns.values())
            return bool(found) or wordless

        try:
            await self.until(heard, timeout=timeout, what="audible reply")
        except ClientError:
            if self._closed is not None:
                raise
            return None
        return found[0] if found else None

    async def done(self, reply: Reply, *, timeout: float) -> None:
        await self.until(lambda: reply.status is not None, timeout=timeout, what="end of the reply")

    # --- the two tasks ------------------------------------------------------------------------------------

    async def _record(self, microphone: Microphone) -> None:
        while self._closed is None:
            due = microphone.due
            await asyncio.sleep(max(0.0, due - self._loop.time()))
            self.lateness = max(self.lateness, self._loop.time() - due)
            audio = base64.b64encode(samples_to_pcm16(microphone.frame())).decode()
            try:
                await self.send("input_audio_buffer.append", audio=audio)
            except ClientError:
                return

    async def _listen(self) -> None:
        try:
            async for message in self._socket:
                arrived = self._loop.time()
                event: Event = json.loads(message)
                self.events.append((arrived, event))
                self._put_together(event, arrived)
                await self._tell()
            self._closed = "the service closed the connection"
        except ConnectionClosed as error:
            self._closed = f"the connection broke: {error}"
        except (ValueError, KeyError) as error:
            self._closed = f"the service sent an event this client cannot read: {error!r}"
        await self._tell()

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    def _put_together(self, event: Event, arrived: float) -> None:
        match event["type"]:
            case "input_audio_buffer.committed":
                self.turns[event["item_id"]] = Turn(event["item_id"], arrived)
            case "conversation.item.input_audio_transcription.completed":
                self.turns[event["item_id"]].transcript = event["transcript"].strip()
            case "conversation.item.input_audio_transcription.failed":
                self.turns[event["item_id"]].transcript = ""
                self.errors.append(str(event["error"].get("message")))
            case "response.created":
                self.replies[event["response"]["id"]] = Reply(event["response"]["id"], arrived)
            case "response.output_audio.delta":
                samples = pcm16_to_samples(base64.b64decode(event["delta"]))
                self.replies[event["response_id"]].sound.add(samples, arrived)
            case "response.output_audio_transcript.delta" | "response.output_text.delta":
                self.replies[event["response_id"]].transcript += event["delta"]
            case "response.done":
                response: Event = event["response"]
                reply = self.replies[response["id"]]
                reply.status = response["status"]
                details: Event = response.get("status_details") or {}
                failure: Event = details.get("error") or {}
                reply.problem = failure.get("message") or details.get("reason")
            case "error":
                self.errors.append(str(event["error"].get("message")))
            case _:
                pass
