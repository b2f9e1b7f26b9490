"""Which responses are kept: by key, by count, by memory, by age; and items that several of them have."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from antiphon.transport.responses_store import Bounds, Kept, Store, weight

WIDE = Bounds(100, 10**9, 1000.0)


def item(id: str, text: str = "x") -> dict[str, Any]:
    return {"id": id, "type": "message", "text": text}


def kept(
    id: str, *items: Any, key: str = "me", made: float = 0.0, output: Any = (), before: Any = ()
) -> Kept:
    return Kept(key, {"id": id, "output": list(output)}, items, tuple(before), made)


def test_a_key_sees_its_own_alone() -> None:
    store = Store(WIDE)
    mine = kept("a", item("i"), output=[item("o")])
    store.put(mine, 0.0)
    assert store.get("me", "a", 1.0) is mine
    assert store.get("you", "a", 1.0) is None
    assert store.item("me", "i", 1.0) == item("i")
    assert store.item("me", "o", 1.0) == item("o")
    assert store.item("you", "i", 1.0) is None
    assert mine.conversation == (item("i"), item("o"))


def test_the_oldest_go_first() -> None:
    store = Store(Bounds(2, 10**9, 1000.0))
    for number in range(3):
        store.put(kept(str(number), item(f"i{number}")), 0.0)
    assert [store.get("me", str(number), 0.0) is not None for number in range(3)] == [False, True, True]
    assert store.item("me", "i0", 0.0) is None


def test_age_ends_them() -> None:
    store = Store(Bounds(9, 10**9, 10.0))
    store.put(kept("a", made=0.0), 0.0)
    assert store.get("me", "a", 9.9) is not None
    assert store.get("me", "a", 10.0) is None
    assert store.size == 0


def test_one_that_is_too_large_is_not_kept() -> None:
    store = Store(Bounds(9, 10_000, 10.0))
    store.put(kept("a"), 0.0)
    store.put(kept("b", item("i", "x" * 20_000)), 0.0)
    assert len(store) == 0
    assert store.size == 0


def test_what_runs_stays() -> None:
    store = Store(Bounds(0, 0, 10.0))
    running = kept("a")
    running.running = True
    store.put(running, 0.0)
    store.put(kept("b"), 0.0)
    assert store.get("me", "b", 0.0) is None
    assert store.get("me", "a", 99.0) is running
    running.running = False
    store.put(running, 99.0)
    assert len(store) == 0


def test_an_item_stays_as_long_as_anyone_has_it() -> None:
    store = Store(WIDE)
    shared = item("i")
    one, other = kept("a", shared), kept("b", shared)
    store.put(one, 0.0)
    store.put(other, 0.0)
    store.remove(one)
    assert store.item("me", "i", 0.0) is shared
    store.remove(other)
    store.remove(other)
    assert store.item("me", "i", 0.0) is None


def test_what_has_become_of_it_takes_its_place() -> None:
    store = Store(WIDE)
    running = kept("a", item("i"))
    store.put(running, 0.0)
    before = store.size
    running.document = {"id": "a", "output": [item("o", "y" * 1000)]}
    store.put(running, 0.0)
    assert len(store) == 1
    assert store.size > before + 1000
    store.remove(running)
    assert store.size == 0


def test_weights_grow_with_what_is_held() -> None:
    assert weight("x" * 1000) - weight("") == 1000
    assert weight([{"a": None, "b": 1.5}, ["x"]]) > weight([]) > 0
    inherited = kept("a", before=[item("i", "x" * 1000)])
    assert inherited.weigh() > 1000


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 3), st.booleans()), max_size=40))
def test_the_bounds_hold_and_the_books_balance(steps: list[tuple[str, int, bool]]) -> None:
    store = Store(Bounds(3, 3000, 20.0))
    for now, (id, size, gone) in enumerate(steps):
        found = store.get("me", id, float(now))
        if gone and found:
            store.remove(found)
        elif not found:
            store.put(kept(id, item(f"i{size}", "x" * 500 * size), made=float(now)), float(now))
        assert len(store) <= 3
        assert store.size <= 3000
    for id in "abcdef":
        if found := store.get("me", id, 0.0):
            store.remove(found)
    assert (len(store), store.size) == (0, 0)
    assert all(store.item("me", f"i{size}", 0.0) is None for size in range(4))
