"""`antiphon bench turns`: how often a pause is taken for the end of a turn, and how long an end is waited for.

The recordings are cut where a person paused, as a session hears them at that candidate end: LEAD seconds after
the last word. What is recognised up to there goes to the language model, as in a session, and its probability
sets the wait (pipeline/endpointing.py). A pause that is labelled incomplete is cut into when the wait is over
before the speaker went on; the end of an utterance is late when the wait is longer than the silence compared
with. Both as curves: over the silence alone, and over the longest wait of `turn.patience`'s line.

    ours    the wait by the probability, `turn.slow` swept, all else as set
    peer    silence alone, the same for every pause

The labels' limits: read speech, not spontaneous; complete and incomplete were judged from the text by one
annotator; what is ambiguous is left out of both rates. Readers pause where commas are, so pauses here are
shorter than a caller's who thinks. The fit of the probability has seen the same recordings.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any, Literal

import numpy as np

from ..asr.base import SAMPLE_RATE, Window
from ..asr.formats import decode_file
from ..llm.base import Message
from ..pipeline.audio import Resampler, mulaw_to_samples, samples_to_mulaw
from ..pipeline.endpointing import EndOfTurn
from ..pipeline.engines import Engines
from ..pipeline.errors import BadRequest, SetupError
from ..pipeline.events import Patience, Samples
from ..pipeline.settings import Settings
from ..transport.engines import load_engines
from .report import last_line, machine, ratio, say, table

LEAD = 0.25
"""Seconds after the last word at which the recogniser is asked: the detector's first silent frames."""
LONGEST = 27.0
"""Seconds of audio given to the recogniser, the last ones."""
REFERENCES = (0.5, 0.7, 1.0)
"""Seconds of silence that are compared with."""
SILENCES = tuple(round(0.1 * n, 1) for n in range(2, 21))
SLOWEST = tuple(round(0.1 * n, 1) for n in range(3, 31))

Band = Literal["16 kHz", "8 kHz"]
BANDS: tuple[Band, ...] = ("16 kHz", "8 kHz")


@dataclass(frozen=True, slots=True)
class Point:
    """One labelled pause or end. pause: seconds until the speaker goes on, None at an utterance's end."""

    path: Path
    end: float
    label: Literal["complete", "incomplete", "ambiguous"]
    pause: float | None
    probability: float = 0.0


@dataclass(frozen=True, slots=True)
class Rate:
    """One point of a curve. at: the threshold, seconds. cut_in: of the incomplete pauses. late: of the ends,
    waited for longer than the silence compared with. median, mean: waits at the ends, seconds."""

    at: float
    cut_in: float
    late: float
    median: float
    mean: float


def main(settings: Settings, args: argparse.Namespace) -> int:
    """args: audio (the folder with `conversation/turns-en.jsonl`, or that file's folder), json.

    Raises BadRequest where there are no labels, SetupError for models that cannot be had.
    """
    points = read(args.audio)
    measured = asyncio.run(_measure(settings, points))
    patience = Patience(settings.turn.quick, settings.turn.slow)
    bands = {band: compare(found, patience) for band, found in measured.items()}
    if not args.json:
        for band, figures in bands.items():
            print(report(band, figures))
    figures: dict[str, Any] = {
        "bench": "turns",
        "machine": machine(),
        "points": {
            label: sum(p.label == label for p in points) for label in ("complete", "incomplete", "ambiguous")
        },
        "ours": {band: figures["ours"] for band, figures in bands.items()},
        "peer": {band: figures["peer"] for band, figures in bands.items()},
        "ratio": {
            "median_wait": bands["16 kHz"]["ratio"]["0.7"],
            "median_wait_8k": bands["8 kHz"]["ratio"]["0.7"],
            "by_silence": {band: figures["ratio"] for band, figures in bands.items()},
        },
    }
    print(last_line(figures))
    return 0


def read(audio: Path) -> list[Point]:
    """The labelled points below a folder. Raises BadRequest when there are none."""
    for labels in (audio / "conversation" / "turns-en.jsonl", audio / "turns-en.jsonl"):
        if labels.is_file():
            break
    else:
        raise BadRequest(f"{audio} holds no conversation/turns-en.jsonl, the labelled pauses")
    rows = [json.loads(line) for line in labels.read_text(encoding="utf-8").splitlines()]
    return [
        Point(
            (labels.parent / row["path"]).resolve(),
            row["speech_end_s"],
            row["label"],
            row["pause_s"] if row["kind"] == "internal-pause" else None,
        )
        for row in rows
    ]


async def _measure(settings: Settings, points: Sequence[Point]) -> dict[Band, list[Point]]:
    async with AsyncExitStack() as stack:
        engines = await stack.enter_async_context(load_engines(settings))
        if engines.text is None:
            raise SetupError(f"llm.backend = {settings.llm.backend!r} gives no probabilities to look at")
        found: dict[Band, list[Point]] = {band: [] for band in BANDS}
        for number, point in enumerate(points, 1):
            samples = await asyncio.to_thread(decode_file, point.path, SAMPLE_RATE)
            until = round((point.end + LEAD) * SAMPLE_RATE)
            heard = samples[max(0, until - round(LONGEST * SAMPLE_RATE)) : until]
            for band, kept in found.items():
                sound = heard if band == "16 kHz" else telephone(heard)
                kept.append(replace(point, probability=await _ask(settings, engines, sound)))
            if number % 20 == 0:
                say(f"{number} of {len(points)} points")
        return found


async def _ask(settings: Settings, engines: Engines, samples: Samples) -> float:
    window = Window(samples, language="en")
    now = asyncio.get_running_loop().time()
    said = await engines.english.submit(window, owner="bench", deadline=now, bucket=engines.bucket(window))
    history = [Message("system", settings.llm.instructions)]
    return await EndOfTurn(engines.text, "bench").probability(history, said.text)


def telephone(samples: Samples) -> Samples:
    """16 kHz audio as it comes through a telephone: 8 kHz, G.711 mu-law, and back."""
    down, up = Resampler(SAMPLE_RATE, 8000), Resampler(8000, SAMPLE_RATE)
    narrow = _whole(down, samples)
    return _whole(up, mulaw_to_samples(samples_to_mulaw(narrow)))


def _whole(resampler: Resampler, samples: Samples) -> Samples:
    return np.concatenate([resampler.process(samples), resampler.flush()])


def compare(points: Sequence[Point], patience: Patience) -> dict[str, Any]:
    """Both curves, and for each silence compared with our median wait at no more cut-ins, and its ratio."""
    incomplete = [p for p in points if p.label == "incomplete" and p.pause is not None]
    ends = [p for p in points if p.label == "complete" and p.pause is None]
    if not incomplete or not ends:
        raise BadRequest("there must be labelled pauses of both kinds: incomplete, and ends of utterances")
    ours = [
        rate(slow, replace(patience, slow=slow), incomplete, ends)
        for slow in SLOWEST
        if slow >= patience.quick
    ]
    peer = [rate(silence, Patience(silence, silence), incomplete, ends) for silence in SILENCES]
    best = {str(silence): _at_no_more(ours, peer, silence) for silence in REFERENCES}
    return {
        "ours": {
            "as_set": _figures(rate(patience.slow, patience, incomplete, ends)),
            "at_the_cut_ins_of": {s: None if r is None else _figures(r) for s, r in best.items()},
            "curve": [_figures(r) for r in ours],
        },
        "peer": {"curve": [_figures(r) for r in peer]},
        "ratio": {s: None if r is None else ratio(r.median, float(s)) for s, r in best.items()},
    }


def rate(at: float, patience: Patience, incomplete: Sequence[Point], ends: Sequence[Point]) -> Rate:
    """What one setting does with all points."""
    cut = [p.pause is not None and p.pause > patience.wait(p.probability) for p in incomplete]
    waits = [patience.wait(p.probability) for p in ends]
    return Rate(at, mean(cut), mean(wait > 0.7 for wait in waits), median(waits), mean(waits))


def _at_no_more(ours: Iterable[Rate], peer: Iterable[Rate], silence: float) -> Rate | None:
    """Our shortest median (then mean) wait with no more cut-ins than this silence has; None if there is none."""
    [reference] = [r for r in peer if r.at == silence]
    allowed = [r for r in ours if r.cut_in <= reference.cut_in]
    return min(allowed, key=lambda r: (r.median, r.mean), default=None)


def _figures(found: Rate) -> dict[str, float]:
    return {
        "at_s": found.at,
        "cut_in": round(found.cut_in, 3),
        "late": round(found.late, 3),
        "median_wait_s": round(found.median, 3),
        "mean_wait_s": round(found.mean, 3),
    }


def report(band: str, figures: dict[str, Any]) -> str:
    """For people: each silence compared with, and what the probability needs for as few cut-ins."""
    rows: list[tuple[object, ...]] = []
    for found in figures["peer"]["curve"]:
        if found["at_s"] not in REFERENCES:
            continue
        best = figures["ours"]["at_the_cut_ins_of"][str(found["at_s"])]
        rows.append((f"silence {found['at_s']} s", *_row(found)))
        if best is not None:
            rows.append((f"  probability, slow {best['at_s']} s", *_row(best)))
    rows.append(("as set", *_row(figures["ours"]["as_set"])))
    header = (band, "cut in", "late", "median wait", "mean wait")
    return table(header, rows) + "\n"


def _row(found: dict[str, float]) -> tuple[str, ...]:
    return (
        f"{100 * found['cut_in']:.0f} %",
        f"{100 * found['late']:.0f} %",
        f"{found['median_wait_s']:.2f} s",
        f"{found['mean_wait_s']:.2f} s",
    )
