"""Where the listener is in a reply: a pure model of the client's playback.

The client is taken to play what it receives at once and in order. Position and what was sent are seconds of
the item's audio; `now` is any steady clock, the same in every call. From it follow the pace (never more than
a lead ahead of playback) and what was heard (for cutting the transcript).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


class Playback:
    """One item's audio, from the first sample sent."""

    def __init__(self) -> None:
        self.sent = 0.0
        self._started: float | None = None

    def add(self, now: float, seconds: float) -> None:
        """Audio leaves for the client. When playback had run dry, it goes on from here."""
        if self._started is None or now - self._started > self.sent:
            self._started = now - self.sent
        self.sent += seconds

    def position(self, now: float) -> float:
        """Seconds heard so far."""
        return 0.0 if self._started is None else min(self.sent, max(0.0, now - self._started))

    def caught_up(self, now: float, seconds: float) -> None:
        """The client was away: it has `seconds` of the audio, and gets the rest from now on."""
        if self._started is not None:
            self._started = max(self._started, now - seconds)

    def wait(self, now: float, lead: float) -> float:
        """Seconds to wait before sending more, so that at most `lead` seconds are unplayed."""
        return max(0.0, self.sent - self.position(now) - lead)


@dataclass(frozen=True, slots=True)
class Spoken:
    """A clause as it was spoken: `text` is exactly its slice of the reply; start and end in seconds of audio."""

    text: str
    start: float
    end: float


def heard(spoken: Sequence[Spoken], position: float) -> str:
    """The prefix of the reply that `position` seconds of its audio hold, cut at a word.

    Inside a clause words are taken to last as long as they are written: a word counts as heard when its last
    letter is.
    """
    kept: list[str] = []
    for clause in spoken:
        if clause.end <= position:
            kept.append(clause.text)
            continue
        if clause.start < position:
            share = (position - clause.start) / (clause.end - clause.start)
            reached = share * len(clause.text)
            ends = [match.end() for match in re.finditer(r"\S+", clause.text) if match.end() <= reached]
            kept.append(clause.text[: ends[-1]] if ends else "")
        break
    return "".join(kept).rstrip()
