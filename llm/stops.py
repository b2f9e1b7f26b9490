"""Where a text stops: before the first of some strings, of which not even a beginning is let out. Pure."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Text in, in pieces; text out, up to the first stop string.

    What could be the beginning of one is held back until it is clear that it is not. Of two that overlap,
    the one that begins first counts; which one ends first does not matter.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.stopped = False

    @property
    def waits(self) -> bool:
        """Whether there is anything to stop at."""
        return bool(self._stops)

    @property
    def held(self) -> int:
        """Characters held back."""
        return len(self._held)

    def push(self, text: str) -> str:
        """The next text that is certain. Nothing once `stopped`."""
        if self.stopped:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = self._find(text)
        # A longer stop string that began before the one found may yet be completed.
        waiting = min(beginning(text, stop) for stop in self._stops)
        if found is not None and found <= waiting:
            self.stopped = True
            self._held = ""
            return text[:found]
        self._held = text[waiting:]
        return text[:waiting]

    def flush(self) -> str:
        """What is held back, as no more comes that could complete a stop string."""
        text, self._held = self._held, ""
        found = self._find(text)
        self.stopped = self.stopped or found is not None
        return text[:found]

    def _find(self, text: str) -> int | None:
        """Where the first stop string begins."""
        places = [text.find(stop) for stop in self._stops]
        return min((place for place in places if place >= 0), default=None)


def beginning(text: str, mark: str) -> int:
    """Where the end of `text` may be the beginning of `mark`; len(text) where it is not."""
    for at in range(max(0, len(text) - len(mark) + 1), len(text)):
        if mark.startswith(text[at:]):
            return at
    return len(text)
