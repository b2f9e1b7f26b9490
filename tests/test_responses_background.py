"""Work that nobody waits for: its turn, its followers, its end."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.pipeline.errors import Overloaded
from antiphon.transport.responses_background import Background, Track


class Job:
    """Publishes "a", waits until it may go on, publishes "b"; "end" is the last word, however it ends."""

    def __init__(self, background: Background, id: str = "x") -> None:
        self.track = Track([])
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.finished = False
        background.start(id, self.track, self.work, lambda: self.track.publish([b"end"]))

    async def work(self) -> None:
        self.track.publish([b"a"])
        self.begun.set()
        await self.go.wait()
        self.track.publish([b"b"])
        self.finished = True


async def followed(track: Track, after: int = -1) -> list[bytes]:
    return [event async for event in track.follow(after)]


async def test_followers_hear_all_of_it_at_any_time() -> None:
    background = Background(4, 4)
    job = Job(background)
    early = asyncio.create_task(followed(job.track))
    await job.begun.wait()
    late = asyncio.create_task(followed(job.track, after=0))
    job.go.set()
    assert await early == [b"a", b"b", b"end"]
    assert await late == [b"b", b"end"]
    assert await followed(job.track, after=1) == [b"end"]
    assert await followed(job.track, after=9) == []
    assert len(background) == 0
    assert background.track("x") is None


async def test_a_follower_that_leaves_ends_nothing() -> None:
    job = Job(Background(4, 4))
    follower = asyncio.create_task(followed(job.track))
    await job.begun.wait()
    follower.cancel()
    await asyncio.gather(follower, return_exceptions=True)
    job.go.set()
    assert await followed(job.track) == [b"a", b"b", b"end"]
    assert job.finished


async def test_cancel_waits_for_the_end() -> None:
    background = Background(4, 4)
    job = Job(background)
    await job.begun.wait()
    await background.cancel("x")
    assert not job.finished
    assert job.track.ended
    assert await followed(job.track) == [b"a", b"end"]
    await background.cancel("x")


async def test_so_many_run_and_the_rest_wait_their_turn() -> None:
    background = Background(3, 1)
    first, second, third = (Job(background, id) for id in "abc")
    with pytest.raises(Overloaded, match=r"responses\.max_background"):
        Job(background, "d")
    await first.begun.wait()
    assert not second.begun.is_set()
    await background.cancel("b")
    assert await followed(second.track) == [b"end"], "it never began"
    first.go.set()
    await third.begun.wait()
    third.go.set()
    await followed(third.track)
    assert len(background) == 0


async def test_drain_lets_them_finish_and_ends_the_rest() -> None:
    background = Background(4, 4)
    quick, slow = Job(background, "quick"), Job(background, "slow")
    await slow.begun.wait()
    quick.go.set()
    await background.drain(0.01)
    assert (quick.finished, slow.finished) == (True, False)
    assert slow.track.ended
    await background.drain(0.01)


async def test_work_that_raises_is_over_too(caplog: pytest.LogCaptureFixture) -> None:
    background = Background(4, 4)

    async def broken() -> None:
        raise RuntimeError("secret")

    track = Track([])
    ended: list[Any] = []
    over: Callable[[], None] = lambda: ended.append(True)  # noqa: E731
    background.start("x", track, broken, over)
    assert await followed(track) == []
    assert ended == [True]
    assert "secret" not in caplog.text
    assert "RuntimeError" in caplog.text
