"""Order, batches, stale work and bounds of the scheduler."""

import pytest

from antiphon.pipeline.errors import Overloaded
from antiphon.pipeline.scheduler import Scheduler, Work


def names(works: list[Work[str]]) -> list[str]:
    return [work.payload for work in works]


def test_the_earliest_deadline_goes_first_and_ties_keep_their_order():
    scheduler: Scheduler[str] = Scheduler()
    for name, deadline in [("late", 3.0), ("first", 1.0), ("second", 1.0), ("middle", 2.0)]:
        scheduler.add(Work(name, "a", deadline))
    order = []
    while len(scheduler):
        order += names(scheduler.next_batch(0.0)[0])
    assert order == ["first", "second", "middle", "late"]


def test_a_batch_holds_one_bucket_only():
    scheduler: Scheduler[str] = Scheduler(max_batch=3)
    for name, deadline, bucket in [("a", 1, 5), ("b", 2, 7), ("c", 3, 5), ("d", 4, 5), ("e", 5, 5)]:
        scheduler.add(Work(name, "o", deadline, bucket))
    assert names(scheduler.next_batch(0)[0]) == ["a", "c", "d"]
    assert names(scheduler.next_batch(0)[0]) == ["b"]
    assert names(scheduler.next_batch(0)[0]) == ["e"]
    assert scheduler.next_batch(0) == ([], [])


def test_a_stale_partial_is_dropped_and_a_late_final_is_not():
    scheduler: Scheduler[str] = Scheduler()
    scheduler.add(Work("partial", "o", 1.0, droppable=True))
    scheduler.add(Work("final", "o", 1.5))
    batch, stale = scheduler.next_batch(2.0)
    assert (names(batch), names(stale)) == (["final"], ["partial"])


def test_cancel_takes_out_an_owner_only():
    scheduler: Scheduler[str] = Scheduler(max_batch=9)
    for owner in "abab":
        scheduler.add(Work(owner, owner, 1.0))
    assert names(scheduler.cancel("a")) == ["a", "a"]
    assert names(scheduler.next_batch(0)[0]) == ["b", "b"]


def test_a_full_queue_refuses():
    scheduler: Scheduler[str] = Scheduler(capacity=2)
    scheduler.add(Work("1", "o", 1))
    scheduler.add(Work("2", "o", 1))
    with pytest.raises(Overloaded, match="try again"):
        scheduler.add(Work("3", "o", 1))
