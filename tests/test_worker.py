"""The worker: what is cancelled while it waits never reaches the model."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from antiphon.pipeline.worker import Dropped, Worker


class Model:
    """Echoes its payloads when `go` is set, and remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()

    def run(self, payloads: Sequence[str]) -> Sequence[str | Exception]:
        self.batches.append(list(payloads))
        self.begun.release()
        assert self.go.wait(10)
        return [ValueError(p) if p == "bad" else p.upper() for p in payloads]


async def begun(model: Model) -> None:
    assert await asyncio.to_thread(model.begun.acquire, timeout=10)


async def test_results_reach_their_callers_in_deadline_order():
    model = Model()
    worker = Worker("test", model.run, max_batch=1)
    first = asyncio.create_task(worker.submit("first", owner="a", deadline=9.0))
    await begun(model)
    late = asyncio.create_task(worker.submit("late", owner="a", deadline=3.0))
    soon = asyncio.create_task(worker.submit("soon", owner="b", deadline=2.0))
    await asyncio.sleep(0)
    model.go.set()
    assert await asyncio.gather(first, late, soon) == ["FIRST", "LATE", "SOON"]
    assert model.batches == [["first"], ["soon"], ["late"]]
    await worker.aclose()


async def test_cancelled_while_waiting_never_reaches_the_model():
    model = Model()
    worker = Worker("test", model.run)
    running = asyncio.create_task(worker.submit("running", owner="a", deadline=1.0))
    await begun(model)
    waiting = asyncio.create_task(worker.submit("waiting", owner="a", deadline=1.0))
    await asyncio.sleep(0)
    assert len(worker) == 1
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(worker) == 0
    model.go.set()
    assert await running == "RUNNING"
    assert model.batches == [["running"]]
    await worker.aclose()


async def test_urgent_work_starts_beside_what_runs():
    model = Model()
    worker = Worker("test", model.run, threads=2)
    slow = asyncio.create_task(worker.submit("slow", owner="a", deadline=1.0))
    await begun(model)
    urgent = asyncio.create_task(worker.submit("urgent", owner="b", deadline=1.0))
    await begun(model)
    assert len(worker) == 0
    model.go.set()
    assert await asyncio.gather(slow, urgent) == ["SLOW", "URGENT"]
    await worker.aclose()


async def test_an_error_is_its_own_callers_only():
    model = Model()
    model.go.set()
    worker = Worker("test", model.run, max_batch=2)
    results = await asyncio.gather(
        worker.submit("good", owner="a", deadline=1.0),
        worker.submit("bad", owner="b", deadline=1.0),
        return_exceptions=True,
    )
    assert results[0] == "GOOD"
    assert isinstance(results[1], ValueError)
    await worker.aclose()


async def test_a_stale_partial_is_told_so():
    model = Model()
    model.go.set()
    worker = Worker("test", model.run)
    with pytest.raises(Dropped):
        await worker.submit("partial", owner="a", deadline=-1.0, droppable=True)
    assert model.batches == []
    await worker.aclose()


async def test_close_ends_those_who_wait():
    model = Model()
    worker = Worker("test", model.run)
    running = asyncio.create_task(worker.submit("running", owner="a", deadline=1.0))
    await begun(model)
    waiting = asyncio.create_task(worker.submit("waiting", owner="a", deadline=1.0))
    await asyncio.sleep(0)
    model.go.set()
    await worker.aclose()
    await worker.aclose()
    assert running.done()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_model_that_gives_too_few_results_fails_its_callers():
    worker: Worker[str, str] = Worker("short", lambda batch: [])
    with pytest.raises(RuntimeError, match="short: 0 results for 1 payloads"):
        await worker.submit("a", owner="a", deadline=1.0)
    await worker.aclose()


async def test_it_tells_what_work_took_and_how_long_it_waited():
    model, told = Model(), []
    worker = Worker("test", model.run)
    worker.watch(told.append)
    assert worker.waited == 0
    first = asyncio.create_task(worker.submit("first", owner="a", deadline=9.0))
    await begun(model)
    second = asyncio.create_task(worker.submit("second", owner="a", deadline=9.0, droppable=True))
    stale = asyncio.create_task(worker.submit("stale", owner="b", deadline=0.0, droppable=True))
    await asyncio.sleep(0.02)
    assert worker.waiting == 2
    loop = asyncio.get_running_loop()
    model.go.set()
    with pytest.raises(Dropped):
        await stale
    await first
    if loop.time() < 9.0:  # on a machine that has just started
        await second
    else:
        with pytest.raises(Dropped):
            await second
    done = [service for service in told if service.size]
    dropped = [service for service in told if not service.size]
    assert (done[0].model, done[0].urgent) == ("test", True)
    assert done[0].took > done[0].waited
    assert dropped
    assert all(service.waited > 0 and not service.urgent for service in dropped)
    assert worker.waited > 0
    await worker.aclose()
