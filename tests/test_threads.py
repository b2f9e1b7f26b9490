"""Blocking calls that somebody stops waiting for."""

import asyncio
import threading

import pytest

from antiphon.pipeline.threads import to_the_end


async def test_a_call_gives_its_result_or_its_error() -> None:
    assert await to_the_end(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        await to_the_end(lambda: 1 // 0)


async def test_who_is_cancelled_waits_for_the_thread() -> None:
    began, go, ended = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        began.set()
        go.wait(20)
        ended.set()

    task = asyncio.create_task(to_the_end(call))
    await asyncio.to_thread(began.wait, 20)
    task.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
