"""Which work a model does next: a pure policy under `worker.py`'s thread.

One queue a model. The earliest deadline goes first, and takes with it work of the same bucket (windows of
like length) up to the batch size. A partial that is past its deadline is stale: it is dropped, not run. The
queue is bounded; when it is full, `add` raises and nothing waits unseen.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from typing import Generic, TypeVar

from .errors import Overloaded

Payload = TypeVar("Payload")


@dataclass(slots=True, eq=False)
class Work(Generic[Payload]):
    """One request to a model.

    deadline: when its result is wanted, on the caller's clock, in seconds. droppable: worth nothing after it.
    """

    payload: Payload
    owner: str
    deadline: float
    bucket: int = 0
    droppable: bool = False
    added: float = 0.0
    """When it was added, on the same clock, for those who measure waiting."""


class Scheduler(Generic[Payload]):
    """Earliest deadline first, in batches of one bucket."""

    def __init__(self, *, max_batch: int = 1, capacity: int = 256) -> None:
        self.max_batch = max_batch
        self.capacity = capacity
        self._queue: list[tuple[float, int, Work[Payload]]] = []
        self._order = itertools.count()
        self._queued: set[int] = set()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, work: Work[Payload]) -> None:
        """Queue work. Raises Overloaded when `capacity` is reached."""
        if len(self._queue) >= self.capacity:
            raise Overloaded(f"{self.capacity} requests wait for this model already; try again later")
        heapq.heappush(self._queue, (self.rank(work), next(self._order), work))
        self._queued.add(id(work))

    def rank(self, work: Work[Payload]) -> float:
        """The lowest goes first; of equal ones the first that came."""
        return work.deadline

    def stale(self, work: Work[Payload], now: float) -> bool:
        """Whether work is worth nothing any more."""
        return work.droppable and work.deadline < now

    def remove(self, work: Work[Payload]) -> None:
        """Take one piece of work out; nothing happens when it is not queued."""
        if id(work) in self._queued:
            self._keep([entry for entry in self._queue if entry[2] is not work])

    def cancel(self, owner: str) -> list[Work[Payload]]:
        """Take all of an owner's work out of the queue and return it."""
        gone = [work for _, _, work in self._queue if work.owner == owner]
        self._keep([entry for entry in self._queue if entry[2].owner != owner])
        return gone

    def next_batch(self, now: float) -> tuple[list[Work[Payload]], list[Work[Payload]]]:
        """(what to run now, what was dropped as stale). Both empty when nothing waits."""
        stale = [work for _, _, work in self._queue if self.stale(work, now)]
        if stale:
            self._keep([entry for entry in self._queue if not self.stale(entry[2], now)])
        if not self._queue:
            return [], stale
        bucket = self._queue[0][2].bucket
        same = heapq.nsmallest(self.max_batch, (e for e in self._queue if e[2].bucket == bucket))
        batch = [work for _, _, work in same]
        chosen = set(map(id, batch))
        self._keep([e for e in self._queue if id(e[2]) not in chosen])
        return batch, stale

    def _keep(self, entries: list[tuple[float, int, Work[Payload]]]) -> None:
        heapq.heapify(entries)
        self._queue = entries
        self._queued = {id(work) for _, _, work in entries}
