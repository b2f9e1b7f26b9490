"""What was said, in order: items, and the messages a language model sees of them.

An agent's item holds what was sent; when it was cut off, it is shortened to what was heard. The conversation
is bounded: beyond `max_items` a client adds nothing until it deletes some. What is said still enters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..llm.base import Message, ToolCall
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
        for an unknown previous item, and for a result whose call is not there.
        """
        if item.id in self._items:
            raise BadRequest(
                f"item {item.id!r} is in the conversation already", param="item.id", code="item_exists"
            )
        if item.kind == "function_call_output" and not any(
            i.kind == "function_call" and i.call_id == item.call_id for i in self._items.values()
        ):
            raise BadRequest(
                f"no function call in the conversation has the call_id {item.call_id!r:.80}",
                code="invalid_tool_call_id",
                param="item.call_id",
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
    """What a language model sees of items, those without words left out.

    Calls belong to the agent's words before them. A result stands right after its call, however late it came;
    one whose call is not among the items stands where it is.
    """
    items = list(items)
    calls = {item.call_id for item in items if item.kind == "function_call"}
    results: dict[str | None, list[Message]] = {}
    for item in items:
        if item.kind == "function_call_output" and item.call_id in calls:
            results.setdefault(item.call_id, []).append(_result(item))
    found: list[Message] = []
    open_results: list[Message] = []
    for item in items:
        if item.kind == "function_call":
            call = ToolCall(item.call_id or "", item.name or "", item.arguments or "{}")
            if found and found[-1].role == "assistant":
                found[-1] = replace(found[-1], tool_calls=(*found[-1].tool_calls, call))
            else:
                found.append(Message("assistant", "", tool_calls=(call,)))
            open_results += results.pop(item.call_id, [])
            continue
        if item.kind == "function_call_output":
            if item.call_id not in calls:
                found.append(_result(item))
            continue
        text = " ".join(part.text for part in item.parts if part.text).strip()
        if text:
            found += open_results
            open_results = []
            found.append(Message(item.role or "user", text))
    return found + open_results


def _result(item: Item) -> Message:
    return Message("tool", item.output or "", tool_call_id=item.call_id)


def _sendable_from(history: Sequence[Message], start: int) -> int:
    """The first place from `start` on where a history may begin: not at a result without its call."""
    while start < len(history) and history[start].role == "tool":
        start += 1
    return start


def shortened(prompt: Sequence[Message]) -> list[Message] | None:
    """A prompt without the older half of its history; None when there is nothing to leave out."""
    head = [message for message in prompt[:1] if message.role == "system"]
    rest = prompt[len(head) :]
    start = _sendable_from(rest, (len(rest) + 1) // 2)
    return None if len(rest) < 2 or start == len(rest) else [*head, *rest[start:]]


def _cut(clause: Spoken, spoken: Sequence[Spoken], audio_end: float) -> Spoken:
    before = "".join(c.text for c in spoken if c.end <= clause.start)
    return Spoken(heard(spoken, audio_end)[len(before) :], clause.start, audio_end)
