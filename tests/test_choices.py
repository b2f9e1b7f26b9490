"""Several completions beside each other: order, turns, errors, and an end for all of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from antiphon.pipeline.errors import EngineFailed
from antiphon.transport.choices import AHEAD, beside


class Source:
    """Gives numbers; `active` of them are open now, `most` were at a time."""

    def __init__(self) -> None:
        self.active = self.most = self.given = 0
        self.hold = asyncio.Event()
        self.hold.set()

    @asynccontextmanager
    async def open(self, count: int, fails: bool = False) -> AsyncIterator[AsyncIterator[int]]:
        self.active += 1
        self.most = max(self.most, self.active)
        try:
            yield self._numbers(count, fails)
        finally:
            self.active -= 1

    async def _numbers(self, count: int, fails: bool) -> AsyncIterator[int]:
        for number in range(count):
            await asyncio.sleep(0)
            self.given += 1
            yield number
            await self.hold.wait()
        if fails:
            raise EngineFailed("broken")


async def test_every_piece_comes_once_and_in_the_order_of_its_own() -> None:
    source = Source()
    async with beside([partial(source.open, n) for n in (3, 0, 5)], at_a_time=3) as pieces:
        found = [piece async for piece in pieces]
    assert [number for index, number in found if index == 0] == [0, 1, 2]
    assert [number for index, number in found if index == 2] == [0, 1, 2, 3, 4]
    assert found != sorted(found), "they take turns"
    assert source.active == 0


async def test_no_more_than_so_many_at_a_time() -> None:
    source = Source()
    async with beside([partial(source.open, 3)] * 9, at_a_time=2) as pieces:
        assert len([piece async for piece in pieces]) == 27
    assert source.most == 2


async def test_the_first_error_ends_all() -> None:
    source = Source()

    async def take() -> None:
        openers = [partial(source.open, 2, fails=True), partial(source.open, 10**6)]
        async with beside(openers, at_a_time=2) as pieces:
            async for _ in pieces:
                pass

    with pytest.raises(EngineFailed):
        await take()
    assert source.active == 0


async def test_leaving_early_ends_all() -> None:
    source = Source()
    async with beside([partial(source.open, 10**6)] * 3, at_a_time=3) as pieces:
        await anext(pieces)
        assert source.active == 3
    assert source.active == 0


async def test_a_reader_that_takes_nothing_holds_them_up() -> None:
    source = Source()
    async with beside([partial(source.open, 10**6)], at_a_time=1) as pieces:
        await anext(pieces)
        for _ in range(10 * AHEAD):
            await asyncio.sleep(0)
        assert source.given <= AHEAD + 2
