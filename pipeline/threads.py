"""Blocking calls on a thread that somebody may stop waiting for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def to_the_end(call: Callable[[], T]) -> T:
    """The call's result, from a thread. Cancelled, it waits for the thread's end first, since the thread has
    something of the caller's in its hands; for calls that are short."""
    task = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
