"""What was said, in order: items, and the messages a language model sees of them.

An agent's item holds what was sent; when it was cut off, it is shortened to what was heard. The conversation
is bounded: beyond `max_items` a client adds nothing until it deletes some. What is said still enters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..llm.base import Message
from .errors import BadRequest, NotFound
from .events import Item
from .playback import Spoken, heard


class Conversation:
    def __init__(self, *, max_items: int = 1000) -> None:
        self.max_items = max_items
        self._items: dict[str, Item] = {}
        self._spoken: dict[str, tuple[Spoken, ...]] = {}
        self._sent: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._items)

    @property
    def items(self) -> Sequence[Item]:
        return tuple(self._items.values())

    @property
    def last_id(self) -> str | None:
        return next(reversed(self._items), None)

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._items

    def append(self, item: Item) -> str | None:
        """Add what was said, by either side, at the end; there is always room. Returns the previous id."""
        previous = self.last_id
        self._items[item.id] = item
        return previous

    def add(self, item: Item, previous_item_id: str | None = None) -> str | None:
        """Insert an item of the client's after `previous_item_id` (None: at the end, "root": at the head).

        Returns the previous id. Raises BadRequest for an id that is taken or a full conversation, NotFound
        for an unknown previous item.
        """
        if item.id in self._items:
            raise BadRequest(
                f"item {item.id!r} is in the conversation already", param="item.id", code="item_exists"
            )
        if len(self._items) >= self.max_items:
            raise BadRequest(
                f"the conversation holds {self.max_items} items (session.max_items); delete some first",
                code="conversation_full",
            )
        if previous_item_id is None or previous_item_id == self.last_id:
            return self.append(item)
        ids = list(self._items)
        if previous_item_id == "root":
            place = 0
        else:
            self.get(previous_item_id, param="previous_item_id")
            place = ids.index(previous_item_id) + 1
        entries = list(self._items.items())
        entries.insert(place, (item.id, item))
        self._items = dict(entries)
        return ids[place - 1] if place else None

    def get(self, item_id: str, *, param: str = "item_id") -> Item:
        """Raises NotFound."""
        try:
            return self._items[item_id]
        except KeyError:
            raise NotFound(
                f"no item {item_id!r} in the conversation", param=param, code="item_not_found"
            ) from None

    def delete(self, item_id: str) -> None:
        """Raises NotFound."""
        self.get(item_id)
        del self._items[item_id]
        self._spoken.pop(item_id, None)
        self._sent.pop(item_id, None)

    def update(self, item: Item, spoken: Iterable[Spoken] = (), *, sent: float = math.inf) -> None:
        """Replace an item by its id; a deleted one stays deleted.

        spoken: when each part of it is heard. sent: seconds of that which left, when it was cut short.
        """
        if item.id in self._items:
            self._items[item.id] = item
            if spoken := tuple(spoken):
                self._spoken[item.id] = spoken
                self._sent[item.id] = min(sent, spoken[-1].end)

    def truncatable(self, item_id: str, content_index: int = 0) -> Item:
        """The item, if its audio can be truncated. Raises NotFound, and BadRequest for one without audio."""
        item = self.get(item_id)
        if item.role != "assistant" or not item.parts or item.parts[0].kind != "output_audio":
            raise BadRequest(
                "only the agent's audio can be truncated", param="item_id", code="not_truncatable"
            )
        if content_index != 0:
            raise BadRequest(
                "the agent's audio is content_index 0", param="content_index", code="invalid_value"
            )
        return item

    def truncate(self, item_id: str, audio_end: float) -> float:
        """Keep of an agent's item what its first `audio_end` seconds of audio say; returns the seconds kept.

        More than was produced is clamped; cutting twice keeps the shorter. Raises NotFound, and BadRequest for
        an item that has no audio.
        """
        item = self.truncatable(item_id)
        spoken = self._spoken.get(item_id, ())
        audio_end = self._sent[item_id] = min(audio_end, self._sent.get(item_id, 0.0))
        text = heard(spoken, audio_end)
        self._items[item_id] = replace(item, parts=(replace(item.parts[0], text=text),))
        self._spoken[item_id] = tuple(
            clause if clause.end <= audio_end else _cut(clause, spoken, audio_end)
            for clause in spoken
            if clause.start < audio_end
        )
        return audio_end

    def messages(self, instructions: str, *, skip: int = 0) -> list[Message]:
        """The prompt: instructions, then every item that has words; the oldest `skip` items left out."""
        head = [Message("system", instructions)] if instructions else []
        return head + messages(self.items[skip:])


def messages(items: Iterable[Item]) -> list[Message]:
    return [message for item in items if (message := _message(item)).content]


def _message(item: Item) -> Message:
    if item.kind == "function_call":
        return Message("assistant", f"{item.name}({item.arguments})")
    if item.kind == "function_call_output":
        return Message("tool", item.output or "")
    text = " ".join(part.text for part in item.parts if part.text)
    return Message(item.role or "user", text.strip())


def _cut(clause: Spoken, spoken: Sequence[Spoken], audio_end: float) -> Spoken:
    before = "".join(c.text for c in spoken if c.end <= clause.start)
    return Spoken(heard(spoken, audio_end)[len(before) :], clause.start, audio_end)
