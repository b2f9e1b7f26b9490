"""Whether one conversation more can be answered in time: a pure model of the load, learned from what it sees.

    service times of the models ─┐
    processor time of this host ─┼─▶ demand of one session ─▶ waiting with n sessions ─┐
    sessions open               ─┘                                                     ├─▶ p95 of voice-to-voice
    voice-to-voice of turns     ─── less the waiting at that time ─▶ a turn's own time ┘

What a turn takes when nobody else is there is learned from real turns; what other sessions add to it is
computed: they queue for the models (urgent work waits for the batch that runs and for other urgent work) and
share the processor (everything takes 1 / (1 - busy) as long). So the figure for the sessions that are here is
held to what turns really took, and the one for a session more follows from it. All of it fades with MEMORY
towards seeds that suit a small CPU, so that neither the first minute nor an hour without turns decides blindly.

Moments are seconds on any one steady clock, which is never read here. Nothing is said, queued or closed here.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

MEMORY = 60.0
"""Seconds after which what was seen counts a third."""

WINDOW = 30
"""Whole seconds of the sliding window over which busy fractions are told."""

FULLEST = 0.9
"""Busy fraction above which the formulas for waiting grow without bound and mean nothing more."""

P95 = 1.645
"""Standard deviations from the mean to the 95th percentile of a normal distribution."""

LONGEST_RETRY = 60
"""Seconds."""

PRIOR_SECONDS = 20.0
"""Seconds of one session's life that a seed of its demand counts for."""

PRIOR_SAMPLES = 2.0
"""Turns, or pieces of work, that a seed of their length counts for."""


@dataclass(frozen=True, slots=True)
class Service:
    """One batch that a model ran, or work that was dropped before it (took and size 0).

    waited: seconds from being asked to its beginning, the longest of the batch. took: seconds on the model.
    urgent: somebody waits for it; other work is only useful.
    """

    model: str
    waited: float
    took: float
    size: int
    urgent: bool


@dataclass(frozen=True, slots=True)
class Seed:
    """What is believed of a model before it is seen. took: seconds of a batch, and their deviation.

    urgent, other: seconds of the model that a session needs, a second. servers: batches at a time.
    """

    took: float
    deviation: float
    urgent: float
    other: float = 0.0
    servers: int = 1


SEEDS: Mapping[str, Seed] = {
    "vad": Seed(0.002, 0.002, urgent=0.05),
    "asr": Seed(0.25, 0.15, urgent=0.03, other=0.06),
    "llm": Seed(0.8, 0.6, urgent=0.1, servers=4),
    "tts": Seed(0.05, 0.05, urgent=0.02),
}
"""Of the default models on two slow cores."""

OWN = (0.7, 0.3)
"""Seconds, and their deviation, that a turn takes when nobody else is there."""

CORES_USED = 0.4
"""Cores that a session keeps busy."""

UNKNOWN = Seed(0.1, 0.1, urgent=0.02)


class Fading:
    """Mean and variance of samples, which count the less the older they are, beside a seed that never does.

    tau: seconds after which a sample counts a third. weight: samples that the seed counts for.
    """

    def __init__(
        self, mean: float, deviation: float, *, tau: float = MEMORY, weight: float = PRIOR_SAMPLES
    ) -> None:
        self._seed = mean, deviation**2 + mean**2
        self._tau, self._weight = tau, weight
        self._at: float | None = None
        self._sums = (0.0, 0.0, 0.0)

    def add(self, value: float, now: float, count: float = 1.0) -> None:
        """count: as so many samples of this value."""
        n, total, squares = self._faded(now)
        self._at = now if self._at is None else max(now, self._at)
        self._sums = n + count, total + count * value, squares + count * value * value

    def mean(self, now: float) -> float:
        n, total, _ = self._faded(now)
        return (total + self._weight * self._seed[0]) / (n + self._weight)

    def variance(self, now: float) -> float:
        n, _, squares = self._faded(now)
        square = (squares + self._weight * self._seed[1]) / (n + self._weight)
        return max(0.0, square - self.mean(now) ** 2)

    def _faded(self, now: float) -> tuple[float, float, float]:
        if self._at is None:
            return 0.0, 0.0, 0.0
        factor = math.exp(-max(0.0, now - self._at) / self._tau)
        n, total, squares = self._sums
        return n * factor, total * factor, squares * factor


class Busy:
    """The share of the last WINDOW seconds in which something ran, in whole seconds' bins."""

    def __init__(self) -> None:
        self._bins = [0.0] * WINDOW
        self._last: int | None = None

    def add(self, seconds: float, now: float) -> None:
        """It ran for so long, until `now`."""
        self._turn(now)
        end = now
        while seconds > 0 and now - end < WINDOW:
            part = min(seconds, end - math.floor(end) or 1.0)
            self._bins[math.ceil(end - 1) % WINDOW] += part
            seconds -= part
            end -= part

    def fraction(self, now: float) -> float:
        self._turn(now)
        return sum(self._bins) / WINDOW

    def _turn(self, now: float) -> None:
        second = math.floor(now)
        if self._last is None or second - self._last >= WINDOW:
            self._bins = [0.0] * WINDOW
        else:
            for gone in range(self._last + 1, second + 1):
                self._bins[gone % WINDOW] = 0.0
        self._last = second if self._last is None else max(second, self._last)


class Model:
    """One model's queue, as far as it can be told from the work it has done."""

    def __init__(self, seed: Seed) -> None:
        self.servers = seed.servers
        self.took = Fading(seed.took, seed.deviation)
        self.waited = Fading(0.0, 0.0)
        self.busy = Busy()
        # Seconds of the model a second of a session. One sample is one second of one session.
        self.urgent = Fading(seed.urgent, 0.0, weight=PRIOR_SECONDS)
        self.other = Fading(seed.other, 0.0, weight=PRIOR_SECONDS)

    def waiting(self, sessions: float, now: float) -> float:
        """Mean seconds that urgent work waits with so many sessions.

        Cobham's formula for two classes without preemption, and Sakasegawa's approximation for several servers
        (Cobham 1954, "Priority Assignment in Waiting Line Problems"; Sakasegawa 1977, "An approximation formula
        Lq = a b^r / (1 - r)").
        """
        took = self.took.mean(now)
        if took <= 0:
            return 0.0
        urgent = min(FULLEST, sessions * self.urgent.mean(now) / self.servers)
        both = min(1.0, urgent + sessions * self.other.mean(now) / self.servers)
        variability = 1 + self.took.variance(now) / took**2
        crowd = both ** (math.sqrt(2 * (self.servers + 1)) - 1)
        return took * variability / 2 * crowd / (self.servers * (1 - urgent))


@dataclass(frozen=True, slots=True)
class Admitted:
    predicted: float


@dataclass(frozen=True, slots=True)
class Refused:
    """predicted: seconds, p95 of voice-to-voice with the session. retry_after: whole seconds, at least 1."""

    predicted: float
    retry_after: int


class Admission:
    """The load of one server, and who may still come.

    objective: seconds, the p95 of voice-to-voice that shall hold. cores: processors that this host has.
    """

    def __init__(
        self, objective: float, *, cores: int = 1, seeds: Mapping[str, Seed] = SEEDS, begun: float = 0.0
    ) -> None:
        self.objective = objective
        self.models = {name: Model(seed) for name, seed in seeds.items()}
        self._own = Fading(*OWN)
        self._cpu = Fading(CORES_USED / cores, 0.0, weight=PRIOR_SECONDS)
        self._cores = cores
        self._sessions = 0
        self._lived = 0.0
        self._since = begun
        self._pending: dict[str, tuple[float, float]] = {}
        self._turns: deque[float] = deque(maxlen=100)

    # --- what it sees -----------------------------------------------------------------------------------

    def sessions(self, open: int, now: float) -> None:
        """So many sessions are open from now on."""
        self._live(now)
        self._sessions = open

    def served(self, service: Service, now: float) -> None:
        """A model ran a batch, or dropped what came too late."""
        model = self.models.setdefault(service.model, Model(UNKNOWN))
        model.waited.add(service.waited, now)
        if service.size:
            model.took.add(service.took, now)
            model.busy.add(service.took / model.servers, now)
            urgent, other = self._pending.get(service.model, (0.0, 0.0))
            took = service.took
            self._pending[service.model] = (
                (urgent + took, other) if service.urgent else (urgent, other + took)
            )

    def sampled(self, cpu: float, now: float) -> None:
        """Call it every second or so. cpu: seconds of processor time since the last call, of all cores."""
        self._live(now)
        lived, self._lived = self._lived, 0.0
        pending, self._pending = self._pending, {}
        if lived <= 0:
            return  # what HTTP clients had done says nothing about sessions
        self._cpu.add(cpu / self._cores / lived, now, lived)
        for name, model in self.models.items():
            urgent, other = pending.get(name, (0.0, 0.0))
            model.urgent.add(urgent / lived, now, lived)
            model.other.add(other / lived, now, lived)

    def answered(self, seconds: float, now: float) -> None:
        """A turn's voice-to-voice time."""
        self._turns.append(seconds)
        alone = (seconds - self._waiting(self._sessions, now)) * (1 - self._crowding(self._sessions, now))
        self._own.add(max(0.0, alone), now)

    def _live(self, now: float) -> None:
        self._lived += self._sessions * max(0.0, now - self._since)
        self._since = now

    # --- what it says -----------------------------------------------------------------------------------

    def predict(self, sessions: int, now: float) -> float:
        """Seconds: p95 of voice-to-voice with so many sessions."""
        stretch = 1 / (1 - self._crowding(sessions, now))
        waiting = self._waiting(sessions, now)
        # Waiting in a busy queue is distributed about exponentially: its deviation is its mean.
        spread = math.sqrt(self._own.variance(now) * stretch**2 + waiting**2)
        return self._own.mean(now) * stretch + waiting + P95 * spread

    def actual(self) -> float | None:
        """Seconds: p95 of voice-to-voice over the latest turns, at most 100; None before the first."""
        turns = sorted(self._turns)
        return turns[math.ceil(0.95 * len(turns)) - 1] if turns else None

    def decide(self, now: float) -> Admitted | Refused:
        """Whether one session more may come. The first always may: nobody would suffer."""
        predicted = self.predict(self._sessions + 1, now)
        if self._sessions == 0 or predicted <= self.objective:
            return Admitted(predicted)
        # The further beyond, the more sessions must end before there is room.
        wait = math.ceil(10 * (predicted / self.objective - 1))
        return Refused(predicted, min(LONGEST_RETRY, max(1, wait)))

    def _crowding(self, sessions: float, now: float) -> float:
        return min(FULLEST, max(0, sessions - 1) * self._cpu.mean(now))

    def _waiting(self, sessions: float, now: float) -> float:
        """Mean seconds that a turn waits in all the queues for others' work."""
        others = max(0, sessions - 1)
        return sum(model.waiting(others, now) for model in self.models.values())
