"""The shell of `admission.py`: it reads the clocks, and hears the models.

One task for the whole server samples two things a few times a second: how late the event loop comes to a timer
that was due (its lag, which every session feels), and what processor time this process used. Sessions have no
timer of their own. Nothing is decided here.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, runtime_checkable

from .admission import SEEDS, Admission, Admitted, Refused, Service
from .engines import Engines
from .metrics import Metrics, TurnTrace
from .settings import Settings

INTERVAL = 0.2
"""Seconds between two samples of the lag."""

LAG_SECONDS = 10.0
"""Seconds over which the worst lag is told."""


@runtime_checkable
class Watched(Protocol):
    """A model that tells how busy it is."""

    @property
    def waiting(self) -> int:
        """Requests that wait for it."""
        ...

    def watch(self, report: Callable[[Service], None]) -> None:
        """Tell `report` of everything it has done from now on, on the event loop."""
        ...


class LoopLag:
    """How late timers are. kept: samples, one every `interval` seconds."""

    def __init__(self, *, interval: float = INTERVAL, kept: int = 3000) -> None:
        self._interval = interval
        self._late: deque[float] = deque(maxlen=kept)

    async def sample(self) -> None:
        """Sleep once, and keep by how much that was too long."""
        loop = asyncio.get_running_loop()
        due = loop.time() + self._interval
        await asyncio.sleep(self._interval)
        self._late.append(max(0.0, loop.time() - due))

    def worst(self, seconds: float = LAG_SECONDS) -> float:
        """Seconds: the worst of the latest samples; 0 before the first."""
        count = max(1, round(seconds / self._interval))
        return max(list(self._late)[-count:], default=0.0)

    def percentile(self, q: float) -> float:
        """Seconds: over all samples kept, 0 < q <= 100; 0 before the first."""
        late = sorted(self._late)
        return late[math.ceil(q / 100 * len(late)) - 1] if late else 0.0


class Monitor:
    """What a server knows of its own load. Everything but `run` is quick, and called on the event loop."""

    def __init__(self, settings: Settings, engines: Engines, metrics: Metrics) -> None:
        self._now = time.monotonic
        seeds = {**SEEDS, "llm": replace(SEEDS["llm"], servers=settings.llm.slots)}
        objective = settings.slo.voice_to_voice_ms / 1000
        self.admission = Admission(objective, cores=cores(), seeds=seeds, begun=self._now())
        self.lag = LoopLag()
        self._open = 0
        models = {"asr": engines.english, "vad": engines.vad, "llm": engines.chat, "tts": engines.voice}
        for name, model in models.items():
            if isinstance(model, Watched):
                model.watch(self._served)
                metrics.watch_model(name, *_figures(self, name, model))
        metrics.watch_load(
            predicted=lambda: self.admission.predict(max(1, self._open), self._now()),
            actual=lambda: self.admission.actual() or math.nan,
            lag=self.lag.worst,
        )

    async def run(self) -> None:
        """Sample until cancelled."""
        used, sampled = time.process_time(), self._now()
        while True:
            await self.lag.sample()
            if (now := self._now()) - sampled >= 1.0:
                before, used, sampled = used, time.process_time(), now
                self.admission.sampled(used - before, now)

    def sessions(self, open: int) -> None:
        """So many sessions are open from now on."""
        self._open = open
        self.admission.sessions(open, self._now())

    def answered(self, trace: TurnTrace) -> None:
        """A turn's trace; one that nobody spoke, or that made no sound, says nothing about waiting."""
        if trace.first_audio_sent is not None and trace.words:
            self.admission.answered(trace.first_audio_sent / 1000, self._now())

    def decide(self) -> Admitted | Refused:
        """Whether one session more may come."""
        return self.admission.decide(self._now())

    def busy(self, model: str) -> float:
        return self.admission.models[model].busy.fraction(self._now())

    def _served(self, service: Service) -> None:
        self.admission.served(service, self._now())


def _figures(monitor: Monitor, name: str, model: Watched) -> tuple[Callable[[], int], Callable[[], float]]:
    return lambda: model.waiting, lambda: monitor.busy(name)


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
