"""Tool calls in what a model writes: found, taken apart and streamed. Pure.

The form that Qwen and Hermes models are taught, and that their templates ask for:

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Oslo"}}
    </tool_call>

Small models often write the JSON alone, bare or in a fence (```json), instead. A reply that begins with such
an object, of a known tool, is a call as well. What turns out to be neither is text, unchanged; what cannot be
the beginning of a call is let out at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from .base import CallDelta
from .stops import beginning

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_WS = None
_Part = tuple[str, ...] | None
"""What comes next: one of some strings, the longest that fits; None is any whitespace."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What `size` characters of a reply mean: text (then all of them), part of a call, or only its marks."""

    size: int
    text: str = ""
    call: CallDelta | None = None


class ToolParser:
    """A reply's text, in pieces, to text and calls. One a reply.

    names: of the known tools. bare: whether a reply that begins with a call's JSON is one. parallel: whether
    there may be more than one call; what follows a last one is dropped, and `full` is set.
    new_id: makes the id of a call.
    """

    def __init__(
        self, names: Sequence[str], *, new_id: Callable[[], str], bare: bool = True, parallel: bool = True
    ) -> None:
        self._names = tuple(json.dumps(name, ensure_ascii=False) for name in names)
        self._new_id = new_id
        self._bare = bare
        self.parallel = parallel
        self._buffer = ""
        self._pieces: list[Piece] = []
        self._state: Callable[[], bool] = self._start
        self._undecided = False
        self._named = False
        self._fenced = False
        self._object, self._around = _Nesting(0), _Nesting(1)
        self.calls = 0
        """How many have begun."""
        self.full = False

    def push(self, text: str) -> list[Piece]:
        self._buffer += text
        while self._buffer and self._state():
            pass
        return self._taken()

    def finish(self) -> list[Piece]:
        """What is held back, as nothing follows. Of a call that has surely begun, nothing."""
        begun = self._buffer.lstrip().startswith(OPEN) or (
            self._state == self._start and (self._named or self.calls > 0)
        )
        if self._state in (self._start, self._text) and not begun:
            self._out(len(self._buffer))
        self._drop(len(self._buffer))
        return self._taken()

    def _taken(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    # States: each reads from the buffer, and says whether another look at it is worth while.

    def _start(self) -> bool:
        """Nothing but whitespace so far, or a bare call."""
        if self._begin((_WS, (OPEN,), _WS), fenced=False):
            return True
        undecided = self._undecided
        if self._bare and self._begin((_WS, ("```json", "```", ""), _WS), fenced=True):
            return True
        if undecided or (self._bare and self._undecided):
            return False
        self._state = self._between if self.calls else self._text
        return True

    def _text(self) -> bool:
        at = self._buffer.find(OPEN)
        if at < 0:
            self._out(beginning(self._buffer, OPEN))
            return False
        self._out(at)
        if self._begin(((OPEN,), _WS), fenced=False):
            return True
        if not self._undecided:
            self._out(len(OPEN))
        return not self._undecided

    def _arguments(self) -> bool:
        end = self._object.read(self._buffer)
        self._call(CallDelta(self.calls - 1, arguments=self._buffer[:end]), end)
        if self._object.closed:
            self._state = self._rest
        return True

    def _rest(self) -> bool:
        """What else there is in the object around the arguments."""
        end = self._around.read(self._buffer)
        self._drop(end)
        if self._around.closed:
            self._state = self._close
        return True

    def _close(self) -> bool:
        marks = ("```json", "```", "") if self._fenced else (CLOSE, "")
        end, found, fits = _match(self._buffer, (_WS, marks))
        if fits == "more":
            return False
        self._drop(end - (len(found[-1]) if found[-1] == "```json" else 0))
        self.full = not self.parallel
        self._state = self._ignored if self.full else self._start if self._fenced else self._between
        return True

    def _between(self) -> bool:
        """After a call: whitespace there is nobody's."""
        self._drop(len(self._buffer) - len(self._buffer.lstrip()))
        if self._buffer:
            self._state = self._text
        return True

    def _ignored(self) -> bool:
        self._drop(len(self._buffer))
        return False

    # What they have in common.

    def _begin(self, lead: tuple[_Part, ...], *, fenced: bool) -> bool:
        """Begin a call if the buffer begins with one, up to its arguments."""
        end, found, fits = _match(self._buffer, (*lead, *_OBJECT, self._names, *_ARGUMENTS))
        self._undecided = fits == "more"
        self._named = self._undecided and any(part in self._names for part in found)
        if fits != "yes":
            return False
        name = next(part for part in found if part in self._names)
        # The last thing found is the brace that the arguments begin with.
        self._call(CallDelta(self.calls, self._new_id(), json.loads(name)), end - 1)
        self.calls += 1
        self._fenced = fenced
        self._object, self._around = _Nesting(0), _Nesting(1)
        self._state = self._arguments
        return True

    def _out(self, size: int) -> None:
        if size:
            self._pieces.append(Piece(size, text=self._buffer[:size]))
            self._buffer = self._buffer[size:]

    def _call(self, call: CallDelta, size: int) -> None:
        self._pieces.append(Piece(size, call=call))
        self._buffer = self._buffer[size:]

    def _drop(self, size: int) -> None:
        if size:
            self._pieces.append(Piece(size))
            self._buffer = self._buffer[size:]


_OBJECT: tuple[_Part, ...] = (("{",), _WS, ('"name"',), _WS, (":",), _WS)
_ARGUMENTS: tuple[_Part, ...] = (_WS, (",",), _WS, ('"arguments"', '"parameters"'), _WS, (":",), _WS, ("{",))


def _match(text: str, parts: Sequence[_Part]) -> tuple[int, list[str], Literal["yes", "more", "no"]]:
    """How far `parts` match from the beginning: (end, the strings found, whether they do).

    "more": what follows decides.
    """
    at = 0
    found: list[str] = []
    for part in parts:
        if part is None:
            at = len(text) - len(text[at:].lstrip())
            continue
        rest = text[at:]
        if any(string.startswith(rest) and string != rest for string in part):
            return at, found, "more"
        longest = max((string for string in part if rest.startswith(string)), key=len, default=None)
        if longest is None:
            return at, found, "no"
        found.append(longest)
        at += len(longest)
    return at, found, "yes"


class _Nesting:
    """Finds the end of a JSON object, or array, in pieces of text."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._string = False
        self._escaped = False
        self.closed = False

    def read(self, text: str) -> int:
        """How many characters of `text` belong to it."""
        for at, character in enumerate(text):
            if self._string:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._string = False
            elif character == '"':
                self._string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    self.closed = True
                    return at + 1
        return len(text)
