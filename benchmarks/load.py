"""`antiphon bench load`: many conversations at once, level by level, on one server.

Each level's clients come one after another, speak at the pace of speech, hear the reply to its end, think, and
speak again. They are let in by latency alone (`slo.voice_to_voice_ms`): as many sessions are allowed as there are
clients, so a refusal is the admission's. Whoever is refused does not come back in that level.

With `--fake` the same server runs on models of known service times (`simulated.py`), for as many sessions as this
machine could never compute answers for: what is measured is then the service itself. `--policy fifo` runs each of
these levels a second time with a plain queue in front of each model, without deadlines.

Underruns are counted a minute of replies played. wasted_ms is the engine time of speculated answers that were
thrown away, over the whole level.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import resource
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..asr.formats import decode_file
from ..pipeline.audio import speech_end
from ..pipeline.errors import BadRequest
from ..pipeline.events import Samples
from ..pipeline.metrics import TurnTrace
from ..pipeline.monitor import LoopLag
from ..pipeline.settings import Settings
from ..transport.server import running
from . import report
from .client import SAMPLE_RATE, ClientError, RealtimeClient
from .crowd import Visit, crowd
from .exchange import BREATH, LEAD_IN, earlier, found_end, why
from .latency import find
from .simulated import Times, simulated

ARRIVAL = 2.0
"""Seconds between two clients of a level: a service learns of the last before the next one knocks."""

LIMIT = 12.0
"""Seconds after an utterance within which its reply must be heard."""

LONGEST_REPLY = 60.0
"""Seconds that a reply may take to its end."""

REPLY_TOKENS = 40
"""Of a reply at most, so that there are several turns a minute."""

CLIPS = 16
"""Recordings that are played, the shortest of four times as many: a long one is read with pauses in which the
service answers, and that is `bench turns`' matter."""

SIZE_INTERVAL = 1.0
"""Seconds between two looks at the memory used."""

LAG_INTERVAL = 0.01
"""Seconds between two samples of the event loop's lag in `--fake`."""


@dataclass
class Caller(Visit):
    """A visit with real sound. lateness: seconds by which its worst frame left late, a check on the ruler."""

    lateness: float = 0.0
    problems: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class Clip:
    samples: Samples
    end: float | None


def main(settings: Settings, args: argparse.Namespace) -> int:
    """args: sessions (text of numbers), seconds, think, audio, fake, policy, json.

    Returns 0, or 1 when a turn was answered in no level, or a reply reached somebody else. Raises BadRequest for
    audio or levels that are not there.
    """
    levels = _levels(args.sessions or ("100,1000" if args.fake else "1,2,4,8"))
    if args.policy == "fifo" and not args.fake:
        raise BadRequest("--policy fifo compares queues in front of simulated models: add --fake")
    if args.fake:
        figures = asyncio.run(fake(settings, levels, args.seconds, args.think or 20.0, args.policy == "fifo"))
    else:
        figures = asyncio.run(bench(settings, levels, args.seconds, args.think or 3.0, args.audio))
    if not args.json:
        print(text(figures))
    print(report.last_line(figures), flush=True)
    strange = sum(row["crosstalk"] for row in figures.get("service", []))
    return 0 if any(level["v2v_ms"] for level in figures["levels"]) and not strange else 1


def _levels(given: str) -> list[int]:
    parts = given.split(",")
    if not all(part.strip().isdecimal() and 1 <= int(part) <= 1000 for part in parts):
        raise BadRequest(f"--sessions: numbers from 1 to 1000 with commas between, not {given!r}")
    return [int(part) for part in parts]


def _roomy(settings: Settings, sessions: int, **slo: float) -> Settings:
    room = settings.server.model_copy(
        update={"max_sessions": max(sessions, settings.server.max_sessions), "drain_seconds": 2.0}
    )
    return settings.model_copy(update={"server": room, "slo": settings.slo.model_copy(update=slo)})


# --- with real models -----------------------------------------------------------------------------------


async def bench(
    settings: Settings, levels: Sequence[int], seconds: float, think: float, audio: Path
) -> dict[str, Any]:
    """Run the levels one after another on one server, and return the figures of the last line."""
    clips = await asyncio.to_thread(_clips, audio)
    kept: list[TurnTrace] = []
    rows: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    report.say("starting the service")
    async with running(_roomy(settings, max(levels)), record=kept.append) as url:
        for sessions in levels:
            kept.clear()
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(_call(url, number, clips, seconds, think)) for number in range(sessions)
                ]
            calls = [task.result() for task in tasks]
            rows.append(level(sessions, calls, kept))
            problems = sorted({problem for call in calls for problem in call.problems})
            runs.append(
                {
                    "sessions": sessions,
                    "turns": sum(len(call.v2v) for call in calls),
                    "lost": sum(call.lost for call in calls),
                    "client_lateness_ms": round(1000 * max(call.lateness for call in calls), 1),
                    "problems": problems[:5],
                }
            )
            report.say(f"{sessions} sessions: {rows[-1]}, {runs[-1]}")
    return {"bench": "load", "machine": report.machine(), "levels": rows, "runs": runs}


def _clips(audio: Path) -> list[Clip]:
    """Blocking."""
    found = find(audio, 4 * CLIPS)
    clips = [Clip(decode_file(utterance.path, SAMPLE_RATE), utterance.end) for utterance in found]
    return sorted(clips, key=lambda clip: len(clip.samples))[:CLIPS]


async def _call(url: str, number: int, clips: Sequence[Clip], seconds: float, think: float) -> Caller:
    """One client, which comes in its turn; all of them leave at the same time."""
    call = Caller()
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    await asyncio.sleep(number * ARRIVAL)
    client = RealtimeClient(url)
    try:
        async with client:
            call.admitted = True
            await client.configure(
                max_output_tokens=REPLY_TOKENS,
                audio={"input": {"transcription": {"model": "whisper-1"}}},
            )
            client.play(np.zeros(round(LEAD_IN * SAMPLE_RATE), np.float32))
            at = number
            while loop.time() < end:
                await _say(client, clips[at % len(clips)], call)
                call.lateness = max(call.lateness, client.lateness)
                at += 7
                await asyncio.sleep(think)
    except ClientError as error:
        if call.admitted:
            call.lost += 1
            call.problems.append(str(error))
        else:
            call.refused = True
    return call


async def _say(client: RealtimeClient, clip: Clip, call: Caller) -> None:
    """One turn, and its reply to the end."""
    level = speech_end(clip.samples, SAMPLE_RATE) if clip.end is None else clip.end
    if level is None:
        return
    played = client.play(clip.samples)
    await client.spoken(played)
    reply = await client.reply_after(played.moment(level) - BREATH, timeout=LIMIT)
    if reply is None or reply.sound.heard is None:
        call.lost += 1
        call.problems.append(why(client, played.moment(level)))
        return
    found = found_end(client, played) if clip.end is None else None
    last = level if found is None else earlier(level, found)
    call.v2v.append(reply.sound.heard - played.moment(last))
    await client.done(reply, timeout=LONGEST_REPLY)
    call.underruns += reply.sound.underruns
    call.reply_seconds += len(reply.sound.samples) / SAMPLE_RATE


# --- with models of known service times -----------------------------------------------------------------


async def fake(
    settings: Settings, levels: Sequence[int], seconds: float, think: float, compare: bool
) -> dict[str, Any]:
    """Run each level on a server of its own, and return the figures of the last line."""
    _many_files()
    out: dict[str, Any] = {"bench": "load", "machine": report.machine(), "levels": [], "service": []}
    if compare:
        out |= {"fifo": [], "gain": []}
    for sessions in levels:
        row, service = await _fake_level(settings, sessions, seconds, think, fifo=False)
        out["levels"].append(row)
        out["service"].append(service)
        report.say(f"{sessions} sessions: {row}, {service}")
        if compare:
            plain, _ = await _fake_level(settings, sessions, seconds, think, fifo=True)
            out["fifo"].append(plain)
            report.say(f"{sessions} sessions, fifo: {plain}")
            out["gain"].append({"sessions": sessions, **gain(row, plain)})
    return out


async def _fake_level(
    settings: Settings, sessions: int, seconds: float, think: float, *, fifo: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    # The seeds of the admission are a small machine's; here everybody shall come in.
    settings = _roomy(settings, sessions, voice_to_voice_ms=600_000.0)
    kept: list[TurnTrace] = []
    lag = LoopLag(interval=LAG_INTERVAL, kept=round(3 * (seconds + 60) / LAG_INTERVAL))
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        await loop.run_in_executor(pool, abs, 0)  # the process is there before anything is measured
        async with (
            simulated(Times(), fifo=fifo) as (engines, schedulers),
            running(settings, record=kept.append, engines=nullcontext(engines)) as url,
        ):
            before, used = resident(), time.thread_time()
            sizes = [before]
            watching = asyncio.create_task(_watch(lag, sizes))
            visits = await loop.run_in_executor(pool, crowd, url, sessions, seconds, think, 1)
            used = time.thread_time() - used
            watching.cancel()
            await asyncio.wait([watching])
    frames = sum(visit.frames for visit in visits) or 1
    service = {
        "sessions": sessions,
        "turns": sum(len(visit.v2v) for visit in visits),
        "lost": sum(visit.lost for visit in visits),
        "crosstalk": sum(visit.strange for visit in visits),
        "chunks": frames,
        "scheduler_us": round(sum(scheduler.spent for scheduler in schedulers) / frames * 1e6, 1),
        "chunk_us": round(used / frames * 1e6, 1),
        "lag_ms": {"p50": round(lag.percentile(50) * 1000, 2), "p99": round(lag.percentile(99) * 1000, 2)},
        "session_kib": round((max(sizes) - before) / sessions / 1024, 1),
    }
    return level(sessions, visits, kept), service


async def _watch(lag: LoopLag, sizes: list[int]) -> None:
    while True:
        for _ in range(round(SIZE_INTERVAL / LAG_INTERVAL)):
            await lag.sample()
        sizes.append(resident())


def resident() -> int:
    """Bytes of memory that this process holds; 0 where that cannot be told."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def _many_files() -> None:
    """A thousand sockets are more than a shell usually allows; the process of the clients inherits the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192 if hard == resource.RLIM_INFINITY else min(8192, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


# --- what came out --------------------------------------------------------------------------------------


def level(sessions: int, visits: Sequence[Visit], traces: Sequence[TurnTrace]) -> dict[str, Any]:
    """One level's figures; v2v_ms is None where no turn was answered."""
    times = [1000 * seconds for visit in visits for seconds in visit.v2v]
    minutes = sum(visit.reply_seconds for visit in visits) / 60
    underruns = sum(visit.underruns for visit in visits)
    return {
        "sessions": sessions,
        "admitted": sum(visit.admitted for visit in visits),
        "refused": sum(visit.refused for visit in visits),
        "v2v_ms": {q: round(report.percentile(times, n), 1) for q, n in (("p50", 50), ("p95", 95))}
        if times
        else None,
        "underruns_per_min": round(underruns / minutes, 2) if minutes else 0.0,
        "wasted_ms": round(sum(trace.wasted_ms for trace in traces), 1),
    }


def gain(ours: dict[str, Any], plain: dict[str, Any]) -> dict[str, float | None]:
    """What deadlines are worth: the plain queue's times over ours."""
    return {f"v2v_{q}": report.ratio(_v2v(plain, q), _v2v(ours, q)) for q in ("p50", "p95")}


def _v2v(row: dict[str, Any], q: str) -> float | None:
    return row["v2v_ms"][q] if row["v2v_ms"] else None


def text(figures: dict[str, Any]) -> str:
    """The same for people."""
    header = ["sessions", "admitted", "refused", "v2v p50", "v2v p95", "underruns/min", "wasted ms"]
    lines: list[str] = []
    for name in ("levels", "fifo"):
        if name not in figures:
            continue
        rows = [
            [
                *(row[key] for key in ("sessions", "admitted", "refused")),
                *(report.ms(_v2v(row, q)) for q in ("p50", "p95")),
                *(row[key] for key in ("underruns_per_min", "wasted_ms")),
            ]
            for row in figures[name]
        ]
        lines += ["plain queue:" if name == "fifo" else "", report.table(header, rows)]
    for row in figures.get("service", []):
        lines.append(
            f"{row['sessions']} sessions: a chunk costs {row['chunk_us']} us, {row['scheduler_us']} us of them "
            f"in the scheduler; event loop p99 {row['lag_ms']['p99']} ms late; "
            f"{row['session_kib']} KiB a session; {row['crosstalk']} replies to somebody else"
        )
    for row in figures.get("gain", []):
        lines.append(
            f"{row['sessions']} sessions, plain queue / deadlines: p50 {row['v2v_p50']}, p95 {row['v2v_p95']}"
        )
    return "\n".join([*lines, ""])
