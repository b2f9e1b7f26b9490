"""Who computes in which slot."""

from __future__ import annotations

import random

from antiphon.llm.slots import Slots


def test_an_owner_comes_back_to_its_slot() -> None:
    slots = Slots(2)
    assert (slots.take("a"), slots.take("b")) == (0, 1)
    slots.give(1)
    slots.give(0)
    assert (slots.take("a"), slots.take("b")) == (0, 1)


def test_a_newcomer_gets_the_slot_left_longest_ago() -> None:
    slots = Slots(3)
    taken = [slots.take(owner) for owner in "abc"]
    for slot in (1, 2, 0):
        assert slot in taken
        slots.give(slot)
    assert slots.take("d") == 1
    assert slots.take("b") == 2, "b lost its slot, so it is a newcomer too"
    assert slots.take("a") == 0


def test_one_slot_an_owner() -> None:
    slots = Slots(2)
    assert slots.take("a") == 0
    assert slots.take("a") is None
    assert slots.take("b") == 1
    assert slots.take("c") is None
    slots.give(0)
    assert slots.take("c") == 0
    assert slots.take("a") is None


def test_slots_hold_their_promises_on_any_walk() -> None:
    rng = random.Random(7)
    slots, seated, last = Slots(3), dict[str, int](), dict[int, str]()
    for _ in range(3000):
        owner = rng.choice("abcdef")
        if owner in seated and rng.random() < 0.7:
            slots.give(seated.pop(owner))
            continue
        slot = slots.take(owner)
        if owner in seated or len(seated) == 3:
            assert slot is None
            continue
        assert slot is not None
        assert slot not in seated.values()
        mine = [s for s, who in last.items() if who == owner]
        assert not mine or slot in mine, "its own slot was free"
        last = {s: who for s, who in last.items() if who != owner} | {slot: owner}
        seated[owner] = slot
