"""`antiphon bench asr`: word error rate and final latency, beside faster-whisper's on the same audio.

Every recording is one turn. Its frames go through the shipped path in order of audio time (detector, partials
every `asr.partial_interval`, a final decode at every candidate end), and the peer gets the same samples at the
last candidate end.

What is measured: **final latency**, from the candidate end that turned out to be the last to the final
transcript. Every decode is really run, and timed; only waiting is simulated, on the clock of the audio. There is
one recogniser thread, so a decode that still runs at the candidate end delays the final one by the rest of
its time, as it would live. The peer is `WhisperModel.transcribe(samples)` with its own defaults (beam of 5,
30 s window), same model, same threads, int8, triggered at that same candidate end with the machine to itself.
The order of the two alternates from file to file. **endpoint delay** is how long after the end of speech, as
the level of the recording tells it, that candidate end came. The word error rate counts the texts of all
files, also of those where nothing was heard, in Whisper's English normal form; the nearer of `text` and `text_alt`.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from ..asr.base import SAMPLE_RATE, Recognizer
from ..asr.formats import decode_file
from ..asr.streaming import Utterance
from ..asr.vad import FRAME, SileroVad, SpeechDetector, VadState
from ..pipeline.audio import speech_end
from ..pipeline.backends import load
from ..pipeline.errors import BadRequest, SetupError
from ..pipeline.events import Samples, SpeechStarted, SpeechStopped
from ..pipeline.settings import Settings
from ..pipeline.weights import WeightStore
from . import report

SILENCE = 1.0
"""Seconds of silence after each recording, so that its end is found."""


@dataclass(frozen=True, slots=True)
class Heard:
    """One turn as the live path heard it. latency and endpoint delay in seconds, None where nothing ended.

    samples: what the final window held. finals, partials: decodes of the turn.
    """

    text: str
    samples: Samples
    latency: float | None = None
    endpoint_delay: float | None = None
    finals: int = 0
    partials: int = 0


class Live:
    """The recogniser's path of one session in virtual time."""

    def __init__(self, settings: Settings, recognizer: Recognizer, vad: SileroVad) -> None:
        self._settings = settings
        self._recognizer = recognizer
        self._vad = vad

    def hear(self, samples: Samples) -> Heard:
        """Play one recording, 16 kHz (n,), as one turn."""
        vad, asr = self._settings.vad, self._settings.asr
        detector = SpeechDetector(vad.threshold, vad.min_speech, prefix_padding=vad.prefix_padding)
        state = VadState()
        utterance: Utterance | None = None
        speaking = False
        busy = 0.0  # until when the recogniser computes, on the clock of the audio
        running: tuple[Any, Any] | None = None  # the partial it computes: window, result
        heard = Heard("", samples[:0])
        finals = partials = 0

        padded = np.pad(samples, (0, round(SILENCE * SAMPLE_RATE) + -len(samples) % FRAME))
        padded = padded[: len(padded) // FRAME * FRAME]
        for at in range(FRAME, len(padded) + 1, FRAME):
            frame, now = padded[at - FRAME : at], at / SAMPLE_RATE
            probability, [state] = self._vad.probabilities(frame[None], [state])
            if running and utterance and busy <= now:
                utterance.accept(*running)
                running = None
            if utterance:
                utterance.push(frame)
            for event in detector.push(float(probability[0])):
                match event:
                    case SpeechStarted(start=start):
                        speaking = True
                        if utterance is None:
                            utterance = Utterance(
                                language=asr.language, partial_interval=asr.partial_interval
                            )
                            utterance.push(padded[round(start * SAMPLE_RATE) : at])
                            began = round(start * SAMPLE_RATE)
                    case SpeechStopped():
                        assert utterance is not None
                        speaking = False
                        free = max(busy, now)
                        if running:
                            if not utterance.covers(running[0]):
                                free = max(busy, now)
                            utterance.accept(*running)
                            running = None
                        while not utterance.reaches(utterance.seconds):
                            window = utterance.window(final=True)
                            result, took = self._decode(window)
                            utterance.accept(window, result)
                            free += took
                            finals += 1
                        busy = free
                        heard = Heard(utterance.text, padded[began:at], free - now, now)
            if utterance and speaking and running is None and busy <= now and utterance.due():
                window = utterance.window(final=False)
                result, took = self._decode(window)
                running, busy = (window, result), now + took
                partials += 1
        end = speech_end(samples, SAMPLE_RATE)
        delay = None if end is None or heard.endpoint_delay is None else heard.endpoint_delay - end
        return Heard(heard.text, heard.samples, heard.latency, delay, finals, partials)

    def _decode(self, window: Any) -> tuple[Any, float]:
        before = time.perf_counter()
        [result] = self._recognizer.transcribe([window])
        return result, time.perf_counter() - before


def main(settings: Settings, args: argparse.Namespace) -> int:
    """Run it over DIR/manifest.jsonl. Raises SetupError without the bench packages, BadRequest for a bad DIR."""
    try:
        from faster_whisper import WhisperModel  # pyright: ignore[reportMissingTypeStubs]

        score = Scorer()
    except ImportError as error:
        raise SetupError(f"bench asr needs {error.name}: pip install 'antiphon[bench]'") from None
    rows = _rows(args.audio, args.limit)
    store = WeightStore(settings.weights.root, offline=settings.weights.offline)
    folder = store.fetch(settings.asr.model)
    recognizer: Recognizer = load("asr", settings.asr.backend)(settings, store)
    live = Live(settings, recognizer, SileroVad(store.fetch(settings.vad.model) / "silero_vad.onnx"))
    peer: Any = WhisperModel(str(folder), device="cpu", compute_type="int8", cpu_threads=settings.asr.threads)

    def transcribe(samples: Samples) -> tuple[str, float]:
        before = time.perf_counter()
        segments, _ = peer.transcribe(samples)
        text = " ".join(segment.text.strip() for segment in segments)
        return text, time.perf_counter() - before

    warm = decode_file(args.audio / rows[0]["path"])
    live.hear(warm)
    transcribe(warm)
    ours: list[Heard] = []
    theirs: list[tuple[str, float] | None] = []
    for number, row in enumerate(tqdm(rows, unit="file", disable=None)):
        samples = decode_file(args.audio / row["path"])
        heard = live.hear(samples)
        # The peer needs the end that our path found; it alternates by running before a second pass of ours.
        other = transcribe(heard.samples) if heard.latency is not None else None
        if number % 2 and other is not None:
            heard = live.hear(samples)
        ours.append(heard)
        theirs.append(other)
    figures = _figures(rows, ours, theirs, score)
    if not args.json:
        print(_text(figures))
    print(report.last_line(figures))
    return 0


def _rows(audio: Path, limit: int | None) -> list[dict[str, Any]]:
    manifest = audio / "manifest.jsonl"
    if not manifest.is_file():
        raise BadRequest(f"--audio: {audio} has no manifest.jsonl")
    rows = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines() if line]
    rows = [row for row in rows if row.get("text")][:limit]
    if not rows:
        raise BadRequest(f"--audio: {manifest} has no recording with a text")
    return rows


class Scorer:
    """Word errors in Whisper's English normal form. Raises ImportError without the bench packages."""

    def __init__(self) -> None:
        import jiwer
        from whisper_normalizer.english import (  # pyright: ignore[reportMissingTypeStubs]
            EnglishTextNormalizer,
        )

        self._jiwer: Any = jiwer
        self._normal: Any = EnglishTextNormalizer()

    def errors(self, row: dict[str, Any], text: str) -> tuple[int, int]:
        """(wrong words, words of the reference) against the nearer of text and text_alt."""
        counts: list[tuple[int, int]] = []
        for reference in filter(None, (row["text"], row.get("text_alt"))):
            found = self._jiwer.process_words(self._normal(reference), self._normal(text))
            wrong = found.substitutions + found.deletions + found.insertions
            counts.append((wrong, found.hits + found.substitutions + found.deletions))
        return min(counts)

    def wer(self, rows: list[dict[str, Any]], texts: list[str]) -> float:
        counts = [self.errors(row, text) for row, text in zip(rows, texts, strict=True)]
        return round(sum(wrong for wrong, _ in counts) / sum(words for _, words in counts), 4)


def _figures(
    rows: list[dict[str, Any]], ours: list[Heard], theirs: list[tuple[str, float] | None], score: Scorer
) -> dict[str, Any]:
    both = [(h, o) for h, o in zip(ours, theirs, strict=True) if o is not None and h.latency is not None]
    short = [(h, o) for h, o in both if 2.0 <= len(h.samples) / SAMPLE_RATE <= 6.0]
    mine: dict[str, Any] = {
        "wer": score.wer(rows, [h.text for h in ours]),
        "final_latency_ms": report.summary((h.latency or 0.0) * 1e3 for h, _ in both),
        "final_latency_2_6s_ms": report.summary((h.latency or 0.0) * 1e3 for h, _ in short),
        "endpoint_delay_ms": report.summary(
            h.endpoint_delay * 1e3 for h in ours if h.endpoint_delay is not None
        ),
        "finals_per_file": round(sum(h.finals for h in ours) / len(ours), 2),
        "partials_per_file": round(sum(h.partials for h in ours) / len(ours), 2),
    }
    peer: dict[str, Any] = {
        "name": "faster-whisper",
        "wer": score.wer(rows, [other[0] if other else "" for other in theirs]),
        "final_latency_ms": report.summary(other[1] * 1e3 for _, other in both),
        "final_latency_2_6s_ms": report.summary(other[1] * 1e3 for _, other in short),
    }
    return {
        "bench": "asr",
        "machine": report.machine(),
        "files": len(rows),
        "files_2_6s": len(short),
        "unheard": len(rows) - len(both),
        "ours": mine,
        "peer": peer,
        "ratio": {
            "final_latency_p50": _ratio(mine, peer, "final_latency_ms", "p50"),
            "final_latency_p95": _ratio(mine, peer, "final_latency_ms", "p95"),
            "final_latency_2_6s_p50": _ratio(mine, peer, "final_latency_2_6s_ms", "p50"),
            "final_latency_2_6s_p95": _ratio(mine, peer, "final_latency_2_6s_ms", "p95"),
            "wer_delta": round(mine["wer"] - peer["wer"], 4),
        },
    }


def _ratio(mine: dict[str, Any], peer: dict[str, Any], figure: str, q: str) -> float | None:
    return report.ratio((mine[figure] or {}).get(q), (peer[figure] or {}).get(q))


def _text(figures: dict[str, Any]) -> str:
    ours, peer, ratio = figures["ours"], figures["peer"], figures["ratio"]
    rows: list[list[object]] = [["wer, %", f"{ours['wer'] * 100:.2f}", f"{peer['wer'] * 100:.2f}", "-"]]
    for name, figure in (("all", "final_latency_ms"), ("2-6 s", "final_latency_2_6s_ms")):
        for q in ("p50", "p95"):
            of = [report.ms((side[figure] or {}).get(q)) for side in (ours, peer)]
            rows.append([f"final {name} {q}, ms", *of, ratio[f"{figure.removesuffix('_ms')}_{q}"] or "-"])
    return report.table(["", "ours", peer["name"], "ratio"], rows)
