"""Several completions of one request, run beside each other, their pieces as they come.

A completion waits for its turn here rather than in the engine's own queue, so that a request of 128 choices
is one among the others that wait, not all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import TypeVar

T = TypeVar("T")

AHEAD = 32
"""Pieces that may wait to be taken; the next one waits with its completion."""

Opened = AbstractAsyncContextManager[AsyncIterator[T]]


@asynccontextmanager
async def beside(
    openers: Sequence[Callable[[], Opened[T]]], *, at_a_time: int
) -> AsyncGenerator[AsyncIterator[tuple[int, T]]]:
    """The pieces of all, each with the number of whose it is; in order within one, interleaved among them.

    The iterator ends when all have ended, and raises the first error of any. Leaving the context, or being
    cancelled in it, cancels those that run and waits for their end.
    """
    pieces: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue(AHEAD)
    turn = asyncio.Semaphore(at_a_time)

    async def run(number: int, opener: Callable[[], Opened[T]]) -> None:
        try:
            async with turn, opener() as stream:
                async for piece in stream:
                    await pieces.put((number, piece))
            await pieces.put(None)
        except Exception as error:
            await pieces.put(error)

    async def taken() -> AsyncGenerator[tuple[int, T]]:
        running = len(openers)
        while running:
            match await pieces.get():
                case None:
                    running -= 1
                case Exception() as error:
                    raise error
                case piece:
                    yield piece

    tasks = [asyncio.create_task(run(number, opener)) for number, opener in enumerate(openers)]
    try:
        async with aclosing(taken()) as stream:
            yield stream
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
