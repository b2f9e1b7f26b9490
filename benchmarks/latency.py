"""`antiphon bench latency`: voice-to-voice time over real utterances, with each stage's share of it.

The service starts once, in this process. Each utterance gets a session of its own, so none profits from
what another left in it; it is played as a microphone would, and the reply is cancelled when its first sound
is heard. With `--serial` the plain serial chain answers the same utterance right after, or right before (they
take turns in going first), so what else the machine does falls on both.

Accuracy stands beside speed: the word error rate of what each side acted on, where the texts are known. An
utterance that gets no reply in time is counted as lost and leaves the times alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ..asr.base import SAMPLE_RATE as ASR_RATE
from ..asr.formats import decode_file
from ..pipeline.engines import Engines
from ..pipeline.errors import AntiphonError, BadRequest, SetupError
from ..pipeline.metrics import STAGES
from ..pipeline.settings import Settings
from ..pipeline.weights import WeightStore
from ..transport.engines import load_engines
from ..transport.server import running
from . import report, serial
from .client import SAMPLE_RATE, ClientError
from .exchange import Exchange, exchange, total

SHORTEST, LONGEST = 1.5, 8.0
"""Seconds of an utterance that is taken from a manifest."""

LIMIT = 20.0
"""Seconds after an utterance within which its reply must be heard."""

SETTLE = 0.5
"""Seconds between two utterances: work that was cancelled, but had begun on a model's thread, ends in it."""

SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a")


@dataclass(frozen=True, slots=True)
class Utterance:
    """One recording; text None where nobody wrote down what is said.

    end: seconds at which its last word ends, where an alignment says so; None is found by level.
    """

    path: Path
    text: str | None = None
    end: float | None = None


def main(settings: Settings, args: argparse.Namespace) -> int:
    """args: audio (a file, or a folder with or without manifest.jsonl), turns, serial, json.

    Returns 0, 1 when no utterance at all was answered. Raises BadRequest for audio that is not there,
    SetupError for a service that cannot start or a package that is missing.
    """
    utterances = find(args.audio, args.turns)
    if len(utterances) < args.turns:
        report.say(f"only {len(utterances)} of {args.turns} utterances are there")
    word_error_rate([""], ["missing packages are known before the run, not after it"])
    figures = asyncio.run(bench(settings, utterances, compare=args.serial))
    if not args.json:
        print(text(figures))
    print(report.last_line(figures), flush=True)
    return 0 if figures["ours"]["v2v_ms"] else 1


async def bench(settings: Settings, utterances: Sequence[Utterance], *, compare: bool) -> dict[str, Any]:
    """Play every utterance, and return the figures of the last line."""
    results: dict[str, list[Exchange]] = {"ours": []}
    async with AsyncExitStack() as stack:
        report.say("starting the service")
        engines = await stack.enter_async_context(load_engines(settings))
        url = await stack.enter_async_context(running(settings, engines=nullcontext(engines)))
        chain = None
        if compare:
            report.say("loading the serial chain")
            chain = await asyncio.to_thread(_load_chain, settings, engines)
            results["serial"] = []
        for number, utterance in enumerate(utterances):
            for side in list(results) if number % 2 == 0 else list(results)[::-1]:
                try:
                    if side == "serial" and chain:
                        samples = await asyncio.to_thread(decode_file, utterance.path, ASR_RATE)
                        result = await chain.answer(samples, limit=LIMIT, end=utterance.end)
                    else:
                        samples = await asyncio.to_thread(decode_file, utterance.path, SAMPLE_RATE)
                        result = await exchange(url, samples, limit=LIMIT, whole=False, end=utterance.end)
                except (ClientError, AntiphonError) as error:
                    result = Exchange(problem=str(error))
                results[side].append(result)
                took = result.problem if result.v2v_ms is None else f"{result.v2v_ms:.0f} ms"
                report.say(f"{number + 1}/{len(utterances)} {side:<6} {utterance.path.name}: {took}")
                await asyncio.sleep(SETTLE)
    texts = [utterance.text for utterance in utterances]
    return figures(
        summarise(results["ours"], texts), summarise(results["serial"], texts) if compare else None
    )


def _load_chain(settings: Settings, engines: Engines) -> serial.SerialChain:
    """Blocking: it loads models."""
    store = WeightStore(settings.weights.root, offline=settings.weights.offline)
    return serial.load(settings, engines, store.fetch(settings.asr.model))


# --- what is played -------------------------------------------------------------------------------------


def find(audio: Path, turns: int) -> list[Utterance]:
    """The utterances to play: `turns` times the one recording, or as many of a folder as there are.

    Of a folder with manifest.jsonl (a JSON object a line: path, text, speaker, duration_s) those of fitting
    length with a text, speaker by speaker in turn; of another its recordings by name. Where align.jsonl (a
    JSON object a line: path, words as [word, start, end]) stands beside it, it says where the speech ends: a
    level cannot tell a last word from the breath after it.
    """
    if audio.is_file():
        return [Utterance(audio)] * turns
    manifest = audio / "manifest.jsonl"
    if manifest.is_file():
        entries = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines() if line]
        ends = _aligned_ends(audio / "align.jsonl")
        found = [
            Utterance(audio / entry["path"], entry["text"], ends.get(entry["path"]))
            for entry in spread(entries)
        ]
    elif audio.is_dir():
        found = [Utterance(path) for path in sorted(audio.rglob("*")) if path.suffix.lower() in SUFFIXES]
    else:
        raise BadRequest(f"--audio: there is no {audio}")
    if not found:
        raise BadRequest(f"--audio: {audio} holds no recording to play")
    return found[:turns]


def _aligned_ends(alignment: Path) -> dict[str, float]:
    if not alignment.is_file():
        return {}
    entries = [json.loads(line) for line in alignment.read_text(encoding="utf-8").splitlines() if line]
    return {entry["path"]: entry["words"][-1][2] for entry in entries if entry.get("words")}


def spread(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries that can be played and scored: the first of every speaker, then the second of every one,
    and so on; always the same order."""
    speakers: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for entry in entries:
        if entry.get("text") and SHORTEST <= entry["duration_s"] <= LONGEST:
            speakers[entry.get("speaker", "")].append(entry)
    rounds = zip_longest(*speakers.values())
    return [entry for row in rounds for entry in row if entry is not None]


# --- what came out --------------------------------------------------------------------------------------


def summarise(results: Sequence[Exchange], texts: Sequence[str | None]) -> dict[str, Any]:
    """One side's figures. Times are over the answered utterances, `wer` over all with a text."""
    answered = [result for result in results if result.v2v_ms is not None]
    stages = {
        stage: report.summary(at for r in answered if (at := r.stages_ms.get(stage)) is not None)
        for stage in STAGES
    }
    return {
        "turns": len(results),
        "lost": len(results) - len(answered),
        "false_ends": sum(result.false_ends for result in results),
        "v2v_ms": report.summary(result.v2v_ms for result in answered if result.v2v_ms is not None),
        "stages_ms": {
            stage: None if figure is None else {"p50": figure["p50"], "p95": figure["p95"]}
            for stage, figure in stages.items()
        },
        "wer": word_error_rate([r.transcript for r in results], texts),
        "speculation": total([result.speculation for result in results]),
        "underruns": sum(result.underruns for result in results),
        "client_lateness_ms": round(max((result.lateness_ms for result in results), default=0.0), 1),
    }


def word_error_rate(heard: Sequence[str], texts: Sequence[str | None]) -> float | None:
    """Over both sides in Whisper's English normal form; None without any text.

    Raises SetupError when the packages for it are missing.
    """
    if not any(texts):
        return None
    try:
        import jiwer
        from whisper_normalizer.english import (  # pyright: ignore[reportMissingTypeStubs]
            EnglishTextNormalizer,
        )
    except ImportError:
        raise SetupError("word error rates need jiwer: pip install 'antiphon[bench]'") from None
    normal: Any = EnglishTextNormalizer()
    wer: Any = jiwer.wer  # pyright: ignore[reportUnknownMemberType]
    pairs = [(normal(text), normal(words)) for text, words in zip(texts, heard, strict=True) if text]
    said = [(text, words) for text, words in pairs if text.strip()]
    return round(float(wer([text for text, _ in said], [words for _, words in said])), 4) if said else None


def figures(ours: dict[str, Any], peer: dict[str, Any] | None) -> dict[str, Any]:
    """The JSON of the last line; `peer` and `ratio` are there only when the serial chain ran."""
    out: dict[str, Any] = {"bench": "latency", "machine": report.machine(), "ours": ours}
    if peer is not None:
        for needless in ("speculation", "underruns", "client_lateness_ms"):
            peer.pop(needless)
        ours_ms: dict[str, float] = ours["v2v_ms"] or {}
        peer_ms: dict[str, float] = peer["v2v_ms"] or {}
        out["peer"] = {"name": "serial", **peer}
        out["ratio"] = {
            f"v2v_{name}": report.ratio(ours_ms.get(name), peer_ms.get(name)) for name in ("p50", "p95")
        }
    return out


def text(figures: dict[str, Any]) -> str:
    """The same for people."""
    sides = {"ours": figures["ours"], **({"serial": figures["peer"]} if "peer" in figures else {})}
    header = ["ms after the last word", *(f"{side} {name}" for side in sides for name in ("p50", "p95"))]

    def row(label: str, cells: Iterable[dict[str, float] | None]) -> list[str]:
        return [label, *(report.ms((cell or {}).get(name)) for cell in cells for name in ("p50", "p95"))]

    rows = [row(stage, [side["stages_ms"][stage] for side in sides.values()]) for stage in STAGES]
    rows.append(row("heard (voice-to-voice)", [side["v2v_ms"] for side in sides.values()]))
    lines = [report.table(header, rows), ""]
    for name, side in sides.items():
        wer = "-" if side["wer"] is None else f"{side['wer']:.1%}"
        lines.append(
            f"{name}: {side['turns']} turns, {side['lost']} lost, "
            f"{side['false_ends']} ended too early, WER {wer}"
        )
    spent = figures["ours"]["speculation"]
    lines.append(
        f"speculation: {spent['launched']:.0f} launched, {spent['used']:.0f} used, "
        f"{spent['discarded']:.0f} discarded, {spent['wasted_ms']:.0f} ms wasted"
    )
    if "ratio" in figures:
        lines.append("ours / serial: " + ", ".join(f"{k} {v}" for k, v in figures["ratio"].items()))
    return "\n".join([*lines, ""])
