"""One exchange: an utterance played into the service, its reply heard, every stage on one axis.

`antiphon talk` shows one, `antiphon bench latency` many, and the serial chain it compares with reports the
same record. The axis is milliseconds after the last speech sample of the recording, found offline, was
spoken. The service counts its stages from the end of speech that its own detector found, and tells where
that was in `speech_stopped`; the difference of the two ends moves its stages onto the axis.
"""

from __future__ import annotations

import asyncio
import json
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..pipeline.audio import speech_end
from ..pipeline.events import Samples
from ..pipeline.metrics import STAGES
from .client import SAMPLE_RATE, Clip, RealtimeClient

LEAD_IN = 0.5
"""Seconds of open microphone before the first word: nobody speaks in the instant of connecting."""

ENDING = 5.0
"""Seconds that the service may take to end a reply which is cancelled, or whose sound is all here."""

BREATH = 0.5
"""Seconds by which the end of speech found offline may be late, because a breath follows the last word: a
turn that is ended within them is not ended too early. (`speech_end`: 460 ms at the 95th percentile.)"""

LONGEST_REPLY = 120.0
"""Seconds of reply that are waited for."""

Stages = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Exchange:
    """What came of one utterance. All times in ms, stages and v2v_ms after its last speech sample.

    transcript: of all its turns. sound: the reply at SAMPLE_RATE. v2v_ms: None when no reply was heard, and
    `problem` says why. false_ends: how often the turn was given up before the utterance was over.
    lateness_ms: the client's own worst frame, a check on the ruler.
    """

    transcript: str = ""
    reply: str = ""
    sound: Samples = field(default_factory=lambda: np.zeros(0, np.float32))
    v2v_ms: float | None = None
    stages_ms: Stages = field(default_factory=lambda: dict.fromkeys(STAGES))
    speculation: dict[str, float] = field(default_factory=lambda: total(()))
    false_ends: int = 0
    underruns: int = 0
    lateness_ms: float = 0.0
    problem: str | None = None


async def traces(server: str, session: str, key: str | None = None) -> list[dict[str, Any]]:
    """The service's own account of a session's turns, oldest first, from its /debug/traces.

    server: any ws:// or http:// address of it. Empty for a service that shows none.
    """
    parts = urllib.parse.urlsplit(server)
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    query = urllib.parse.urlencode({"session": session})
    address = urllib.parse.urlunsplit((scheme, parts.netloc, "/debug/traces", query, ""))

    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    asked = urllib.request.Request(address, headers=headers)

    def fetch() -> list[dict[str, Any]]:
        try:
            with urllib.request.urlopen(asked, timeout=ENDING) as answer:
                return json.load(answer)["traces"]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    return await asyncio.to_thread(fetch)


async def exchange(
    url: str,
    samples: Samples,
    *,
    limit: float,
    whole: bool,
    end: float | None = None,
    key: str | None = None,
) -> Exchange:
    """Play an utterance (SAMPLE_RATE) in a session of its own, and hear the reply.

    limit: seconds after the utterance within which the reply must be heard. whole: hear it to its end;
        otherwise cancel it once it is heard. end: seconds at which the last word ends. None to find it: by
        level, or where the detector found it when that is earlier, since a level counts a breath as speech.

    Raises ClientError when the service fails as such; a missing reply is a `problem`. Cancelling ends the
    session.
    """
    last = speech_end(samples, SAMPLE_RATE) if end is None else end
    if last is None:
        return Exchange(problem="the recording holds no speech")
    async with RealtimeClient(url, key=key) as client:
        await client.configure(audio={"input": {"transcription": {"model": "whisper-1"}}})
        client.play(np.zeros(round(LEAD_IN * SAMPLE_RATE), np.float32))
        clip = client.play(samples)
        ended = clip.moment(last)
        await client.spoken(clip)
        reply = await client.reply_after(ended - BREATH, timeout=limit)
        if reply is not None and reply.status is None:
            if whole:
                await client.done(reply, timeout=LONGEST_REPLY)
            else:
                await client.send("response.cancel", response_id=reply.id)
                await client.done(reply, timeout=ENDING)
        if client.turns:
            await client.until(
                lambda: all(turn.transcript is not None for turn in client.turns.values()),
                timeout=ENDING,
                what="transcript",
            )
        summaries = await traces(url, client.session_id, key)
        found = found_end(client, clip)
        if end is None and found is not None:
            last = earlier(last, found)
            ended = clip.moment(last)
        heard = reply.sound.heard if reply else None
        return Exchange(
            transcript=" ".join(turn.transcript or "" for turn in client.turns.values()).strip(),
            reply=reply.transcript.strip() if reply else "",
            sound=reply.sound.samples if reply else np.zeros(0, np.float32),
            v2v_ms=None if heard is None else (heard - ended) * 1000,
            stages_ms=moved(summaries[-1]["stages_ms"], 0.0 if found is None else (found - last) * 1000)
            if reply and summaries
            else dict.fromkeys(STAGES),
            speculation=total([summary["speculation"] for summary in summaries]),
            false_ends=sum(turn.committed < ended - BREATH for turn in client.turns.values()),
            underruns=reply.sound.underruns if reply else 0,
            lateness_ms=client.lateness * 1000,
            problem=None if reply else why(client, ended),
        )


def earlier(level: float, detected: float) -> float:
    """The end of speech, in seconds: the detector's where it is before the level's, since a level counts a breath
    as speech; but not so much before it that the detector just missed words."""
    return detected if level - BREATH <= detected < level else level


def moved(stages: Stages, by_ms: float) -> Stages:
    return {name: None if at is None else round(at + by_ms, 1) for name, at in stages.items()}


def total(speculations: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = ("launched", "used", "discarded", "wasted_ms")
    return {name: round(sum(s.get(name, 0) for s in speculations), 1) for name in names}


def found_end(client: RealtimeClient, clip: Clip) -> float | None:
    """Where in the recording the service found the end of the last turn, in seconds."""
    ends = [e["audio_end_ms"] for _, e in client.events if e["type"] == "input_audio_buffer.speech_stopped"]
    return ends[-1] / 1000 - clip.offset if ends else None


def why(client: RealtimeClient, ended: float) -> str:
    """Why no reply was heard, as far as the client can tell."""
    if client.errors:
        return f"the service answered with an error: {client.errors[-1]}"
    if not client.turns:
        return "the service heard no speech"
    if not any(turn.transcript for turn in client.turns.values()):
        return "the service heard speech, but no words in it"
    if not client.replies:
        return "the service heard the words, but began no reply in time"
    reply = list(client.replies.values())[-1]
    if reply.created <= ended - BREATH:
        return "the service answered before the recording's last word, and not again"
    detail = f" ({reply.problem})" if reply.problem else ""
    return f"the service began a reply that had no sound in time: {reply.status or 'in progress'}{detail}"
