"""Threads: blocking calls that somebody may stop waiting for, and how OpenMP's wait for each other."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

SPINS = "300"
"""Turns of OpenMP's waiting loop, microseconds, before a thread sleeps. None at all costs every operation of
a model a sleep and a waking; too many take the cores from others (docs/decisions/0003 has the figures)."""


def calm_openmp() -> None:
    """Tell OpenMP libraries that are loaded after this how their threads wait; what is set already stays."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "passive"
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


async def to_the_end(call: Callable[[], T]) -> T:
    """The call's result, from a thread. Cancelled, it waits for the thread's end first, since the thread has
    something of the caller's in its hands; for calls that are short."""
    task = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
