"""Which of the engine's slots an owner computes in. Pure."""

from __future__ import annotations


class Slots:
    """count: of slots. An owner has one slot at a time, and the one it had last when that is free."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count))
        """The one left longest ago first."""
        self._owners: dict[int, str] = {}
        """Of each slot, who has it or had it last."""
        self._seated: set[str] = set()

    def take(self, owner: str) -> int | None:
        """The slot the owner had last, else the one left longest ago. None while the owner has a slot, or
        none is free."""
        if owner in self._seated or not self._free:
            return None
        slot = next((slot for slot in self._free if self._owners.get(slot) == owner), self._free[0])
        self._free.remove(slot)
        self._owners[slot] = owner
        self._seated.add(owner)
        return slot

    def give(self, slot: int) -> None:
        self._seated.remove(self._owners[slot])
        self._free.append(slot)
