"""The scheduler's shell: one model, its threads, futures for those who wait.

All bookkeeping happens on the event loop; the threads only ever run the model. A caller that is cancelled
while its work waits never reaches the model; while the model computes it, the result is thrown away.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from .admission import Fading, Service
from .scheduler import Scheduler, Work

In = TypeVar("In")
Out = TypeVar("Out")


WAITED_MEMORY = 10.0
"""Seconds after which a piece of work counts a third in `Worker.waited`."""


class Dropped(Exception):
    """Droppable work went stale before the model was free for it."""


class Worker(Generic[In, Out]):
    """Runs `run(batch)` on threads of its own, in the scheduler's order.

    run: blocking; takes a list of payloads and returns as many results, or raises for all of them. A result
        that is itself an Exception is raised for its own caller only.
    threads: batches at a time, for a model that allows it; urgent work then starts beside what runs.
    scheduler: instead of one with this `max_batch` and `capacity`.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[Sequence[In]], Sequence[Out | Exception]],
        *,
        max_batch: int = 1,
        capacity: int = 256,
        threads: int = 1,
        scheduler: Scheduler[In] | None = None,
    ) -> None:
        self.name = name
        self._run = run
        self._report: Callable[[Service], None] = lambda service: None
        if scheduler is None:
            scheduler = Scheduler(max_batch=max_batch, capacity=capacity)
        self._scheduler = scheduler
        self._waited = Fading(0.0, 0.0, tau=WAITED_MEMORY)
        self._futures: dict[int, asyncio.Future[Out]] = {}
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"antiphon-{name}")
        self._running: set[asyncio.Task[None]] = set()
        self._busy = 0

    def __len__(self) -> int:
        """How much work waits."""
        return len(self._scheduler)

    @property
    def waiting(self) -> int:
        """The same."""
        return len(self._scheduler)

    def watch(self, report: Callable[[Service], None]) -> None:
        """Tell `report` of every batch from now on, and of work that was dropped. It must be quick."""
        self._report = report

    @property
    def waited(self) -> float:
        """Seconds that work waited lately, on average; next to nothing for a model that is always free."""
        return self._waited.mean(asyncio.get_running_loop().time())

    async def submit(
        self, payload: In, *, owner: str, deadline: float, bucket: int = 0, droppable: bool = False
    ) -> Out:
        """The model's result for this payload.

        deadline: on the event loop's clock. Raises Overloaded when the queue is full, Dropped when the work
        was droppable and went stale, and what the model raised. Cancelling takes waiting work out of the queue.
        """
        loop = asyncio.get_running_loop()
        work = Work(payload, owner, deadline, bucket, droppable, loop.time())
        self._scheduler.add(work)
        future = self._futures[id(work)] = loop.create_future()
        if self._busy < self._threads:
            self._busy += 1
            task = asyncio.create_task(self._drain(), name=f"worker-{self.name}")
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        try:
            return await future
        finally:
            self._futures.pop(id(work), None)
            self._scheduler.remove(work)

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                now = loop.time()
                batch, stale = self._scheduler.next_batch(now)
                for work in stale:
                    self._settle(work, Dropped())
                    self._tell(Service(self.name, now - work.added, 0.0, 0, False), now)
                if not batch:
                    return
                took = 0.0
                try:
                    call = loop.run_in_executor(self._pool, self._timed, [work.payload for work in batch])
                    results, took = await call
                    if len(results) != len(batch):
                        raise RuntimeError(f"{self.name}: {len(results)} results for {len(batch)} payloads")
                except Exception as error:
                    results = [error] * len(batch)
                waited = now - min(work.added for work in batch)
                urgent = not all(work.droppable for work in batch)
                self._tell(Service(self.name, waited, took, len(batch), urgent), loop.time())
                for work, result in zip(batch, results, strict=True):
                    self._settle(work, result)
        finally:
            # In the same step as the look at the empty queue: whoever submits next starts a drain again.
            self._busy -= 1

    def _timed(self, payloads: Sequence[In]) -> tuple[Sequence[Out | Exception], float]:
        """On the thread, so that the figure is the model's and not the event loop's."""
        began = time.perf_counter()
        results = self._run(payloads)
        return results, time.perf_counter() - began

    def tell(self, service: Service) -> None:
        """Report work that another worker did for this one's model."""
        self._report(service)

    def _tell(self, service: Service, now: float) -> None:
        self._waited.add(service.waited, now)
        self._report(service)

    def _settle(self, work: Work[In], result: Out | Exception) -> None:
        future = self._futures.get(id(work))
        if future is None or future.done():
            return
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

    async def aclose(self) -> None:
        """Fail what waits, let the running batches end, stop the threads. Idempotent."""
        for future in list(self._futures.values()):
            future.cancel()
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.to_thread(self._pool.shutdown, wait=True, cancel_futures=True)
