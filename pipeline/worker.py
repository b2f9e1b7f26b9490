"""The scheduler's shell: one model, its threads, futures for those who wait.

All bookkeeping happens on the event loop; the threads only ever run the model. A caller that is cancelled
while its work waits never reaches the model; while the model computes it, the result is thrown away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from .scheduler import Scheduler, Work

In = TypeVar("In")
Out = TypeVar("Out")


class Dropped(Exception):
    """Droppable work went stale before the model was free for it."""


class Worker(Generic[In, Out]):
    """Runs `run(batch)` on threads of its own, in the scheduler's order.

    run: blocking; takes a list of payloads and returns as many results, or raises for all of them. A result
        that is itself an Exception is raised for its own caller only.
    threads: batches at a time, for a model that allows it; urgent work then starts beside what runs.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[Sequence[In]], Sequence[Out | Exception]],
        *,
        max_batch: int = 1,
        capacity: int = 256,
        threads: int = 1,
    ) -> None:
        self.name = name
        self._run = run
        self._scheduler: Scheduler[In] = Scheduler(max_batch=max_batch, capacity=capacity)
        self._futures: dict[int, asyncio.Future[Out]] = {}
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"antiphon-{name}")
        self._running: set[asyncio.Task[None]] = set()
        self._busy = 0

    def __len__(self) -> int:
        """How much work waits."""
        return len(self._scheduler)

    async def submit(
        self, payload: In, *, owner: str, deadline: float, bucket: int = 0, droppable: bool = False
    ) -> Out:
        """The model's result for this payload.

        deadline: on the event loop's clock. Raises Overloaded when the queue is full, Dropped when the work
        was droppable and went stale, and what the model raised. Cancelling takes waiting work out of the queue.
        """
        work = Work(payload, owner, deadline, bucket, droppable)
        self._scheduler.add(work)
        future = self._futures[id(work)] = asyncio.get_running_loop().create_future()
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
                batch, stale = self._scheduler.next_batch(loop.time())
                for work in stale:
                    self._settle(work, Dropped())
                if not batch:
                    return
                try:
                    results = await loop.run_in_executor(self._pool, self._run, [w.payload for w in batch])
                    if len(results) != len(batch):
                        raise RuntimeError(f"{self.name}: {len(results)} results for {len(batch)} payloads")
                except Exception as error:
                    results = [error] * len(batch)
                for work, result in zip(batch, results, strict=True):
                    self._settle(work, result)
        finally:
            # In the same step as the look at the empty queue: whoever submits next starts a drain again.
            self._busy -= 1

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
