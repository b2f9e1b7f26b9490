"""What a turn cost: one trace a turn, one log line a trace, and the counters behind `/metrics`.

A trace counts from one moment, the end of the user's speech, so its figures add up to what the user
waited. A stage that began before the end of speech is negative; one that did not happen is None. The
session fills the trace in; this module only writes it down. No clock is read here.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

STAGES = ("transcript_final", "gate_open", "first_token", "first_clause", "first_audio", "first_audio_sent")
"""The stages of a turn, in the order in which a serial chain would reach them."""

BUCKETS = (0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0)
"""Seconds; dense around 0.4 s, where a reply begins to feel late."""

KEPT = 256
"""Traces kept for those who ask later."""

log = logging.getLogger("antiphon.turn")


@dataclass(slots=True)
class TurnTrace:
    """One turn, or one response asked for by hand, in milliseconds after the end of the user's speech.

    session, turn (from 1), revision: which attempt of which turn was answered.
    audio_seconds: the user's speech. words: how many were recognised in it.
    transcript_final: the recogniser is done. gate_open: the turn is over and the reply may flow.
    first_token, first_clause: of the language model. first_audio: the voice's first samples.
    over: the probability that the turn was over, by which the gate opened; None without one.
    first_audio_sent: the moment they left for the client.
    launched, used, discarded: speculated answers of this turn; wasted_ms: engine time of the discarded ones.
    status: how the response ended. transcript, reply: kept here, written down only when asked.
    """

    session: str
    turn: int
    revision: int
    audio_seconds: float = 0.0
    words: int = 0
    transcript_final: float | None = None
    gate_open: float | None = None
    first_token: float | None = None
    first_clause: float | None = None
    first_audio: float | None = None
    first_audio_sent: float | None = None
    over: float | None = None
    launched: int = 0
    used: int = 0
    discarded: int = 0
    wasted_ms: float = 0.0
    status: str = "completed"
    transcript: str = ""
    reply: str = ""

    def stages_ms(self) -> dict[str, float | None]:
        values = {stage: getattr(self, stage) for stage in STAGES}
        return {stage: None if value is None else round(value, 1) for stage, value in values.items()}

    def speculation(self) -> dict[str, float]:
        return {
            "launched": self.launched,
            "used": self.used,
            "discarded": self.discarded,
            "wasted_ms": round(self.wasted_ms, 1),
        }

    def summary(self, *, texts: bool) -> dict[str, Any]:
        """The trace as one JSON object. texts: include what was said, by both sides."""
        said = {"transcript": self.transcript, "reply": self.reply} if texts else {}
        return {
            "session": self.session,
            "turn": self.turn,
            "revision": self.revision,
            "status": self.status,
            "audio_seconds": round(self.audio_seconds, 3),
            "words": self.words,
            "over": None if self.over is None else round(self.over, 3),
            "stages_ms": self.stages_ms(),
            "speculation": self.speculation(),
            **said,
        }


class Metrics:
    """The counters of one server, in a registry of their own.

    texts: write transcripts and replies into the log line too.
    """

    def __init__(self, *, texts: bool = False) -> None:
        self._texts = texts
        self._kept: deque[TurnTrace] = deque(maxlen=KEPT)
        self.registry = CollectorRegistry()
        self._stage = Histogram(
            "antiphon_stage_seconds",
            "From the end of the user's speech to each stage of the reply",
            ["stage"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._turns = Counter("antiphon_turns", "Turns answered", registry=self.registry)
        self._speculations = Counter(
            "antiphon_speculations",
            "Answers begun before the turn was over",
            ["fate"],
            registry=self.registry,
        )
        self._wasted = Counter(
            "antiphon_speculation_wasted_seconds",
            "Engine time of discarded speculations",
            registry=self.registry,
        )
        self.responses = Counter("antiphon_responses", "Responses ended", ["status"], registry=self.registry)
        self.errors = Counter("antiphon_errors", "Errors told to clients", ["code"], registry=self.registry)
        self.sessions = Gauge("antiphon_sessions", "Sessions open", registry=self.registry)
        self.refused = Counter(
            "antiphon_sessions_refused", "Sessions refused", ["code"], registry=self.registry
        )
        self._queue = Gauge(
            "antiphon_queue_depth", "Work waiting for a model", ["model"], registry=self.registry
        )

        self._busy = Gauge(
            "antiphon_model_busy_ratio",
            "Share of the last 30 s in which a model computed",
            ["model"],
            registry=self.registry,
        )
        self._predicted = Gauge(
            "antiphon_predicted_voice_to_voice_seconds",
            "95th percentile of voice-to-voice that is expected with the sessions that are open",
            registry=self.registry,
        )
        self._actual = Gauge(
            "antiphon_actual_voice_to_voice_seconds",
            "95th percentile of voice-to-voice over the latest 100 turns",
            registry=self.registry,
        )
        self._lag = Gauge(
            "antiphon_event_loop_lag_seconds",
            "Longest delay of a timer in the last 10 s",
            registry=self.registry,
        )

    def watch_model(self, model: str, depth: Callable[[], int], busy: Callable[[], float]) -> None:
        """Report `depth()` as this model's queue, and `busy()`, each time `/metrics` is read."""
        self._queue.labels(model).set_function(lambda: float(depth()))
        self._busy.labels(model).set_function(busy)

    def watch_load(
        self, *, predicted: Callable[[], float], actual: Callable[[], float], lag: Callable[[], float]
    ) -> None:
        """Report these, all in seconds, each time `/metrics` is read. A NaN says that there is no figure yet."""
        self._predicted.set_function(predicted)
        self._actual.set_function(actual)
        self._lag.set_function(lag)

    def record(self, trace: TurnTrace) -> None:
        """Count a turn, keep its trace and write its line."""
        self._kept.append(trace)
        self._turns.inc()
        for stage in STAGES:
            value: float | None = getattr(trace, stage)
            if value is not None:
                self._stage.labels(stage).observe(value / 1000)
        self._speculations.labels("launched").inc(trace.launched)
        self._speculations.labels("used").inc(trace.used)
        self._speculations.labels("discarded").inc(trace.discarded)
        self._wasted.inc(max(0.0, trace.wasted_ms) / 1000)
        log.info("turn %s", json.dumps(trace.summary(texts=self._texts), ensure_ascii=False))

    def traces(self, session: str | None = None) -> list[dict[str, Any]]:
        """The latest turns, of one session or of all, oldest first; never what was said."""
        return [t.summary(texts=False) for t in self._kept if session in (None, t.session)]

    def exposition(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self.registry)
