"""The calls of one reply, put together from the model's pieces. Pure.

A call exists for the client when its arguments are a whole JSON object, and then at once and whole: what a
barge-in or a token limit cuts off in the middle of the arguments was never a call.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from ..llm.base import CallDelta, ToolCall


class Calls:
    def __init__(self) -> None:
        self._calls: dict[int, ToolCall] = {}

    def __len__(self) -> int:
        """How many have begun."""
        return len(self._calls)

    def push(self, pieces: Iterable[CallDelta]) -> None:
        for piece in pieces:
            old = self._calls.get(piece.index, ToolCall("", "", ""))
            self._calls[piece.index] = ToolCall(
                old.id or piece.id, old.name or piece.name, old.arguments + piece.arguments
            )

    def whole(self) -> list[ToolCall]:
        """Those that can be carried out, in the order they began."""
        return [call for _, call in sorted(self._calls.items()) if call.name and _is_object(call.arguments)]


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        return False
