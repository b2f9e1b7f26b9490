"""What sound over a reply means: somebody takes the floor, or hums along, or it is the reply itself come back.

A cough or a door has no words and interrupts nothing. Words interrupt, except those that listeners say to show
that they listen, and those that the reply is saying: without an echo canceller the loudspeaker reaches the
microphone. Pure; decides on words alone.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher

_LISTENING = """
    mm mmm mhm mmhm mmhmm hm hmm uh huh uhhuh um ah aha oh ooh wow ok okay right yeah yep yup yes sure true
    exactly good great nice cool really see i
"""
LISTENING = frozenset(_LISTENING.split())
"""Said over a speaker without wanting the floor, alone or two together ("I see", "oh right")."""

TAKING = frozenset(
    ("stop", "wait", "no", "hold", "hang", "pause", "enough", "quiet", "cancel", "sorry", "excuse")
)
"""Words that take the floor alone, even while only a part of them is heard."""

MOST_LISTENING = 3
"""More words than this are said to be heard, whatever they are."""

ECHO = 0.6
"""Share of the words, in order, that the reply has been saying; recognised from an echo, some are wrong."""

TAIL = 0.3
"""Seconds after the end of a reply, taken to be played, in which an echo of it may still begin to be heard:
network, buffers and the detector's delay. Who answers it begins later."""

RECENT = 40
"""Words of the reply, the last ones said, that an echo can be of."""


def listening(text: str) -> bool:
    """Whether these words only show that somebody listens; so does no word at all."""
    words = _words(text)
    return len(words) <= MOST_LISTENING and all(word in LISTENING for word in words)


def echo(text: str, said: str) -> bool:
    """Whether these words are the reply's own. said: the reply so far."""
    words, recent = _words(text), _words(said)[-RECENT:]
    if not words:
        return False
    blocks = SequenceMatcher(None, words, recent, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks) >= ECHO * len(words)


def interrupts(text: str, said: str, *, whole: bool, speaking: bool = True) -> bool:
    """Whether somebody who said this wants the floor.

    said: the reply so far; after a question of its own, "yes" is an answer. whole: they have finished;
    otherwise a word alone may yet become another. speaking: more of the reply comes; to its end, which is
    still being played, any other word is an answer.
    """
    words = _words(text)
    asked = not speaking or (whole and said.rstrip().endswith("?"))
    # One word of a reply that is over is an answer: "Tea or coffee?" - "Coffee."
    back = echo(text, said) and (speaking or len(words) > 1)
    if not words or (listening(text) and not asked) or back:
        return False
    return whole or len(words) >= 2 or words[0] in TAKING


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower().replace("'", "").replace("-", ""))
