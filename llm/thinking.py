"""What a thinking model thinks, taken out of what it says. Pure.

Such a model begins with `<think>`, or its prompt ends with that, and goes on with `</think>` and the reply.
A reply that begins with anything else has no thoughts, and `<think>` further on is text.
"""

from __future__ import annotations

from .stops import beginning

OPEN, CLOSE = "<think>", "</think>"


class ThinkingSplitter:
    """The text of a reply, in pieces, to (what is read in all, thoughts, text).

    inside: the prompt has opened the thoughts already. Whitespace around the thoughts is dropped, whatever is
    dropped or let out counts as read.
    """

    def __init__(self, *, inside: bool = False) -> None:
        self._held = ""
        self._state = "first" if inside else "head"

    def push(self, text: str) -> tuple[int, str, str]:
        """(characters of the thoughts and marks read, thoughts, the text after them)"""
        text = self._held + text
        self._held = ""
        before = len(text)
        if self._state == "head":
            bare = text.lstrip()
            if bare.startswith(OPEN):
                text, self._state = bare[len(OPEN) :], "first"
            elif OPEN.startswith(bare):
                self._held = text
                return 0, "", ""
            else:
                self._state = "out"
        if self._state == "out":
            return 0, "", text
        thoughts = ""
        if self._state == "first":
            text = text.lstrip()
            if text:
                self._state = "inside"
        if self._state == "inside":
            thoughts, mark, text = text.partition(CLOSE)
            if mark:
                thoughts = thoughts.rstrip()
                self._state = "between"
            else:
                # Whitespace waits too: it may be the last before the mark.
                at = beginning(thoughts, CLOSE)
                at = len(thoughts[:at].rstrip())
                thoughts, self._held = thoughts[:at], thoughts[at:]
                return before - len(self._held), thoughts, ""
        if self._state == "between":
            text = text.lstrip()
            if text:
                self._state = "out"
        return before - len(text), thoughts, text

    def finish(self) -> tuple[int, str, str]:
        """What is held back, as nothing follows."""
        held, self._held = self._held, ""
        return (len(held), held.rstrip(), "") if self._state == "inside" else (0, "", held)
