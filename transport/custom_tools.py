"""The text of a custom tool's call, out of the JSON that the model writes for it. Pure.

To the model a custom tool is a function of one string: `{"input": "..."}`. Its client gets the string alone,
as it is written.
"""

from __future__ import annotations

import json
import re

_HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_UNIT = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a character in two halves
    r"|\\u(?![dD][89abAB])[0-9a-fA-F]{4}"
    r'|\\[^u]|[^\\"]+'
)


class InputReader:
    """Reads one call's arguments in pieces."""

    def __init__(self) -> None:
        self._held = ""
        self._inside = False
        self._closed = False

    def push(self, piece: str) -> str:
        """What the piece adds to the text; half of an escape waits for its other half."""
        if self._closed:
            return ""
        self._held += piece
        if not self._inside:
            head = _HEAD.match(self._held)
            if head is None:
                return ""
            self._held = self._held[head.end() :]
            self._inside = True
        at = 0
        while unit := _UNIT.match(self._held, at):
            at = unit.end()
        text, self._held = self._held[:at], self._held[at:]
        self._closed = self._held.startswith('"')
        return json.loads(f'"{text}"', strict=False)
