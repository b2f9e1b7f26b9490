"""Blocking calls that somebody stops waiting for."""

import asyncio
import os
import threading

import pytest

from antiphon.pipeline.threads import calm_openmp, to_the_end


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


@pytest.mark.parametrize(
    ("policy", "spins", "expected"),
    [
        (None, None, ("passive", "300")),
        (None, "7", ("passive", "7")),
        ("active", None, ("active", None)),
    ],
)
def test_openmp_waits_as_the_operator_says_else_it_spins_for_a_moment(
    policy: str | None, spins: str | None, expected: tuple[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("OMP_WAIT_POLICY", policy), ("GOMP_SPINCOUNT", spins)):
        monkeypatch.setenv(name, value or "")
        if value is None:
            monkeypatch.delenv(name)
    calm_openmp()
    assert (os.environ["OMP_WAIT_POLICY"], os.environ.get("GOMP_SPINCOUNT")) == expected
