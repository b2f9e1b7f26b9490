"""`antiphon bench asr`: word error rate and final latency, beside faster-whisper's on the same audio.

Every recording is one turn. Its frames go through the shipped path in order of audio time (detector, partials
every `asr.partial_interval`, a final decode at every candidate end), and the peer gets the same samples at the
last candidate end.

What is measured: **final latency**, from the candidate end that turned out to be the last to the final
transcript. Every decode is really run, and timed; only waiting is simulated, on the clock of the audio.
There is one recogniser thread, so a decode that still runs at the candidate end delays the final one by the
rest of its time, as it would live. The peer is `WhisperModel.transcribe(samples)` with its own defaults
(beam of 5, 30 s window), same model, same threads, int8, triggered at that same candidate end with the
machine to itself.
The order of the two alternates from file to file. **endpoint delay** is how long after the end of speech, as
the level of the recording tells it, that candidate end came. The word error rate counts the texts of all
files, also of those where nothing was heard, in Whisper's English normal form, against the nearer of `text`
and `text_alt`.

`final_latency_ms` and its ratios are of utterances of 2 to 6 s, which is how long people speak to a voice service
at a time; `final_latency_all_ms` are of every length.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from ..asr.base import SAMPLE_RATE, Recognizer, Transcription, Window
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
    """One turn's transcript, `latency` seconds after the last candidate end, and the decodes it took."""

    text: str
    latency: float = 0.0
    finals: int = 0
    partials: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """What the detector made of one recording: frames with the events each one brought.

    start, end: samples of the turn's audio, from its pre-roll to its last candidate end; both 0 when no
    speech was found.
    """

    frames: list[tuple[Samples, list[SpeechStarted | SpeechStopped]]]
    start: int
    end: int

    @property
    def samples(self) -> Samples:
        return np.concatenate([frame for frame, _ in self.frames])[self.start : self.end]


def listen(samples: Samples, vad: SileroVad, detector: SpeechDetector) -> Turn:
    """Run the detector over one recording, 16 kHz (n,), and the silence after it."""
    state, start, end = VadState(), None, 0
    frames: list[tuple[Samples, list[SpeechStarted | SpeechStopped]]] = []
    whole = np.pad(samples, (0, round(SILENCE * SAMPLE_RATE) + -len(samples) % FRAME))
    for at in range(FRAME, len(whole) + 1, FRAME):
        frame = whole[at - FRAME : at]
        probability, [state] = vad.probabilities(frame[np.newaxis], [state])
        events = detector.push(float(probability[0]))
        frames.append((frame, events))
        for event in events:
            if isinstance(event, SpeechStopped):
                end = at
            elif start is None:
                start = round(event.start * SAMPLE_RATE)
    return Turn(frames, start or 0, end)


@dataclass(frozen=True, slots=True)
class Pair:
    """Both sides on one file, None where the detector heard no speech; times in seconds."""

    row: dict[str, Any]
    ours: Heard | None
    theirs: Heard | None
    seconds: float
    endpoint_delay: float | None


class Live:
    """The recogniser's path of one session in virtual time."""

    def __init__(self, settings: Settings, recognizer: Recognizer) -> None:
        self._asr = settings.asr
        self._recognizer = recognizer

    def hear(self, turn: Turn) -> Heard:
        """Decode as a session does: partials while speech lasts, a final at every candidate end."""
        utterance = Utterance(language=self._asr.language, partial_interval=self._asr.partial_interval)
        speaking = False
        busy = 0.0  # until when the recogniser computes, on the clock of the audio
        running: tuple[Window, Transcription] | None = None  # the partial it computes
        heard = Heard("")
        finals = partials = at = 0
        for frame, events in turn.frames:
            at += len(frame)
            now = at / SAMPLE_RATE
            if at > turn.start:
                utterance.push(frame[max(0, turn.start - (at - len(frame))) :])
            if running and busy <= now:
                utterance.accept(*running)
                running = None
            for event in events:
                speaking = isinstance(event, SpeechStarted)
                if speaking:
                    continue
                free = max(busy, now)
                if running:
                    utterance.accept(*running)
                    running = None
                upto = utterance.seconds
                while not utterance.reaches(upto):
                    window = utterance.window(final=True)
                    result, took = self._decode(window)
                    utterance.accept(window, result)
                    free += took
                    finals += 1
                busy = free
                heard = Heard(utterance.text, free - now)
            if speaking and running is None and busy <= now and utterance.due():
                window = utterance.window(final=False)
                result, took = self._decode(window)
                running, busy = (window, result), now + took
                partials += 1
        return replace(heard, finals=finals, partials=partials)

    def _decode(self, window: Window) -> tuple[Transcription, float]:
        before = time.perf_counter()
        [result] = self._recognizer.transcribe([window])
        return result, time.perf_counter() - before


def main(settings: Settings, args: argparse.Namespace) -> int:
    """Run it over DIR/manifest.jsonl and print the report.

    Raises SetupError without the packages of the bench extra, BadRequest for a DIR without recordings.
    """
    try:
        from faster_whisper import WhisperModel  # pyright: ignore[reportMissingTypeStubs]

        score = Scorer()
    except ImportError as error:
        raise SetupError(f"bench asr needs {error.name}: pip install 'antiphon[bench]'") from None
    logging.getLogger("faster_whisper").setLevel(logging.WARNING)  # a line for each file otherwise
    rows = _rows(args.audio, args.limit)
    store = WeightStore(settings.weights.root, offline=settings.weights.offline)
    folder = store.fetch(settings.asr.model)
    recognizer: Recognizer = load("asr", settings.asr.backend)(settings, store)
    live, vad = Live(settings, recognizer), SileroVad(_onnx(store, settings.vad.model))
    peer: Any = WhisperModel(str(folder), device="cpu", compute_type="int8", cpu_threads=settings.asr.threads)

    def transcribe(turn: Turn) -> Heard:
        before = time.perf_counter()
        segments, _ = peer.transcribe(turn.samples)
        text = " ".join(segment.text.strip() for segment in segments)  # it decodes while it is iterated
        return Heard(text, time.perf_counter() - before)

    pairs: list[Pair] = []
    for number, row in enumerate(tqdm([rows[0], *rows], unit="file", disable=None)):
        samples = decode_file(args.audio / row["path"])
        detector = SpeechDetector(
            settings.vad.threshold, settings.vad.min_speech, prefix_padding=settings.vad.prefix_padding
        )
        turn = listen(samples, vad, detector)
        if turn.end == 0:
            pairs.append(Pair(row, None, None, 0.0, None))
            continue
        if number % 2:
            ours, theirs = live.hear(turn), transcribe(turn)
        else:
            theirs, ours = transcribe(turn), live.hear(turn)
        spoken = speech_end(samples, SAMPLE_RATE)
        delay = None if spoken is None else turn.end / SAMPLE_RATE - spoken
        pairs.append(Pair(row, ours, theirs, (turn.end - turn.start) / SAMPLE_RATE, delay))
    pairs = pairs[1:]  # the first file came twice: once to warm both up
    figures = _figures(pairs, score)
    if not args.json:
        print(_text(figures))
    print(report.last_line(figures))
    return 0


def _onnx(store: WeightStore, model: str) -> Path:
    path = store.fetch(model)
    return path / "silero_vad.onnx" if path.is_dir() else path


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


def _side(pairs: list[Pair], heard: list[Heard | None], score: Scorer) -> dict[str, Any]:
    times = [(pair.seconds, h.latency * 1e3) for pair, h in zip(pairs, heard, strict=True) if h]
    return {
        "wer": score.wer([pair.row for pair in pairs], [h.text if h else "" for h in heard]),
        "final_latency_ms": report.summary(ms for seconds, ms in times if 2.0 <= seconds <= 6.0),
        "final_latency_all_ms": report.summary(ms for _, ms in times),
    }


def _figures(pairs: list[Pair], score: Scorer) -> dict[str, Any]:
    mine = _side(pairs, [pair.ours for pair in pairs], score)
    peer = {"name": "faster-whisper", **_side(pairs, [pair.theirs for pair in pairs], score)}
    delays = [pair.endpoint_delay * 1e3 for pair in pairs if pair.endpoint_delay is not None]
    heard = [pair.ours for pair in pairs if pair.ours]
    mine["endpoint_delay_ms"] = report.summary(delays)
    mine["finals_per_file"] = round(sum(h.finals for h in heard) / max(1, len(heard)), 2)
    mine["partials_per_file"] = round(sum(h.partials for h in heard) / max(1, len(heard)), 2)
    return {
        "bench": "asr",
        "machine": report.machine(),
        "files": len(pairs),
        "files_2_6s": sum(2.0 <= pair.seconds <= 6.0 for pair in pairs),
        "unheard": len(pairs) - len(heard),
        "ours": mine,
        "peer": peer,
        "ratio": {
            "final_latency_p50": _ratio(mine, peer, "final_latency_ms", "p50"),
            "final_latency_p95": _ratio(mine, peer, "final_latency_ms", "p95"),
            "final_latency_all_p50": _ratio(mine, peer, "final_latency_all_ms", "p50"),
            "final_latency_all_p95": _ratio(mine, peer, "final_latency_all_ms", "p95"),
            "wer_delta": round(mine["wer"] - peer["wer"], 4),
        },
    }


def _ratio(mine: dict[str, Any], peer: dict[str, Any], figure: str, q: str) -> float | None:
    return report.ratio(_of(mine, figure, q), _of(peer, figure, q))


def _of(side: dict[str, Any], figure: str, q: str) -> float | None:
    summary: dict[str, float] | None = side[figure]
    return summary[q] if summary else None


def _text(figures: dict[str, Any]) -> str:
    ours, peer, ratio = figures["ours"], figures["peer"], figures["ratio"]
    rows: list[list[object]] = [["wer, %", f"{ours['wer'] * 100:.2f}", f"{peer['wer'] * 100:.2f}", "-"]]
    for name, figure in (("2-6 s", "final_latency_ms"), ("all", "final_latency_all_ms")):
        for q in ("p50", "p95"):
            of = [report.ms(_of(side, figure, q)) for side in (ours, peer)]
            rows.append([f"final {name} {q}, ms", *of, ratio[f"{figure.removesuffix('_ms')}_{q}"] or "-"])
    return report.table(["", "ours", peer["name"], "ratio"], rows)
