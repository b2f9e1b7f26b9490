"""Which responses are kept, for whom, and until when. Pure.

A response is seen by the key that made it and by no other. There are bounds for how many are kept, for all
their bytes and for their age; where one is reached, the oldest go. Those that still run in the background
stay: how many run has a bound of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

Json = Mapping[str, Any]
Name = tuple[str, str]
"""(key, id)"""


@dataclass(frozen=True, slots=True)
class Bounds:
    """count: of responses. size: bytes of memory, about. age: seconds."""

    count: int
    size: int
    age: float


@dataclass(slots=True)
class Kept:
    """A response and what it answered.

    key: who made it. before: the items of the conversation before its own. events: of one that runs or ran in
    the background, as they are sent; the one whose number is n stands at n. made: seconds. size, listed: the
    store's own.
    """

    key: str
    document: Json
    items: tuple[Json, ...]
    before: tuple[Json, ...]
    made: float
    running: bool = False
    events: list[bytes] = field(default_factory=list[bytes])
    size: int = 0
    listed: tuple[Json, ...] = ()

    @property
    def id(self) -> str:
        return self.document["id"]

    @property
    def conversation(self) -> tuple[Json, ...]:
        """All items until its end."""
        return (*self.before, *self.items, *self.document["output"])

    def weigh(self) -> int:
        """Bytes of memory, about; those of `before` too, which live as long as it does, whoever else has them."""
        return weight((self.document, self.items, self.before)) + sum(map(len, self.events))


def weight(value: Any) -> int:
    """Bytes of memory of a JSON value, about."""
    match value:
        case str():
            return 50 + len(value)
        case dict():
            members = cast("dict[str, Any]", value)
            return 64 + sum(50 + len(name) + weight(member) for name, member in members.items())
        case list() | tuple():
            return 56 + sum(map(weight, cast("list[Any]", value)))
        case _:
            return 32


class Store:
    """Time is any one clock's seconds."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._kept: dict[Name, Kept] = {}
        """The oldest first."""
        self._items: dict[Name, tuple[Json, int]] = {}
        """Every item, and how many responses have it: a reference puts one into a second."""
        self._size = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size(self) -> int:
        """Bytes of memory, about."""
        return self._size

    def put(self, kept: Kept, now: float) -> None:
        """Keep a response, or what has become of it."""
        if (kept.key, kept.id) in self._kept:
            self._forget(kept)
        kept.size = kept.weigh()
        kept.listed = (*kept.items, *kept.document["output"])
        self._size += kept.size
        self._kept[kept.key, kept.id] = kept
        for item in kept.listed:
            name = (kept.key, item["id"])
            self._items[name] = (item, self._items[name][1] + 1 if name in self._items else 1)
        self._tidy(now)

    def get(self, key: str, id: str, now: float) -> Kept | None:
        self._tidy(now)
        return self._kept.get((key, id))

    def item(self, key: str, id: str, now: float) -> Json | None:
        """An item of a response that is kept."""
        self._tidy(now)
        found = self._items.get((key, id))
        return None if found is None else found[0]

    def remove(self, kept: Kept) -> None:
        """Does nothing for one that is not there."""
        if self._kept.pop((kept.key, kept.id), None) is not None:
            self._forget(kept)

    def _forget(self, kept: Kept) -> None:
        self._size -= kept.size
        for item in kept.listed:
            name = (kept.key, item["id"])
            found, times = self._items.pop(name)
            if times > 1:
                self._items[name] = (found, times - 1)

    def _tidy(self, now: float) -> None:
        bounds = self._bounds
        for kept in [kept for kept in self._kept.values() if not kept.running]:
            old = now - kept.made >= bounds.age
            if not (old or len(self._kept) > bounds.count or self._size > bounds.size):
                break
            self.remove(kept)
