"""The open window of one turn: which samples to decode next, and which words can be relied on.

Partials come every `partial_interval` seconds of audio. A word is committed when two decodes in a row agree
on it (LocalAgreement-2: Machacek et al. 2023, "Turning Whisper into Real-Time Transcription System");
committed words are forced as the next partial's prefix. A final window is decoded without one and replaces
all: what partials agreed on too early would stay wrong, 3 points of word errors (docs/decisions/0002). A long
turn is decoded piece by piece: audio whose words are committed is dropped at a segment's end, so a window
never reaches the recogniser's 30 s. Pure: no model, no clock, no threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..pipeline.events import Samples
from .base import SAMPLE_RATE, Transcription, Window

TRIM = 20.0
"""Seconds of window from which committed audio is dropped."""
LONGEST = 28.0
"""Seconds of the longest window given out."""
UNSTABLE = 2
"""Words at the end of a window that are never committed: the audio may end inside them."""
SLACK = 0.05
"""Seconds a window may lack and still hold all the speech: the silent frame that tells the end."""
PAUSE = 0.5
"""Seconds of audio that stay after a dropped segment's end at least."""


STRETCH = 4.0
"""Partials come at most so much less often."""
UNNOTICED = 0.02
"""Seconds of waiting that are no load yet."""


def stretch(waited: float, interval: float) -> float:
    """By how much partials are to come less often, 1 to STRETCH, so that finals find the recogniser free.

    waited: seconds that work waits for the recogniser, on average. One speaker alone waits for nothing and keeps
    the cadence; where the wait is half an interval long, it is halved.
    """
    return min(STRETCH, 1.0 + 2 * max(0.0, waited - UNNOTICED) / interval)


class Utterance:
    """One turn's audio and text. Feed `push`; when `due`, decode `window` and give the result to `accept`.

    language: of the windows, None to detect. partial_interval: seconds of audio between partials.
    """

    def __init__(self, *, language: str | None = None, partial_interval: float = 0.6) -> None:
        self.language = language
        self.partial_interval = partial_interval
        self._samples: list[Samples] = []
        self._begin = 0  # first sample of the window, counted from the turn's first
        self._end = 0
        self._asked = 0  # end of the newest window given out
        self._accepted = 0  # end of the newest window whose text we have
        self._unforced = 0  # the same end, where no prefix was forced on that text
        self._given: dict[int, tuple[int, int, bool]] = {}
        """By a window's id: its begin, its end, and whether it was all there was. No audio is kept here, since
        a window that was dropped on the way never comes back."""
        self._done: list[str] = []  # words whose audio is dropped
        self._agreed: list[str] = []
        self._words: list[str] = []
        self._final = False

    def push(self, samples: Samples) -> None:
        """Append 16 kHz mono samples, shape (n,)."""
        self._samples.append(samples)
        self._end += len(samples)

    @property
    def seconds(self) -> float:
        """Length of the turn so far, dropped audio included."""
        return self._end / SAMPLE_RATE

    def due(self, stretch: float = 1.0) -> bool:
        """Whether enough audio came since the last window for another partial: `stretch` intervals of it."""
        return self._end - self._asked >= round(self.partial_interval * stretch * SAMPLE_RATE)

    def window(self, *, final: bool) -> Window:
        """What to decode now: all audio that is not dropped, at most LONGEST seconds of it.

        Only partials carry a prefix, and none above TRIM: a forced prefix has no segment times to drop audio by.
        """
        held = np.concatenate(self._samples) if self._samples else np.zeros(0, np.float32)
        self._samples = [held]
        held = held[: round(LONGEST * SAMPLE_RATE)]
        prefix = "" if final or len(held) > TRIM * SAMPLE_RATE else " ".join(self._agreed).rstrip(".,;:!?…")
        window = Window(held, prefix, self.language, final)
        self._asked = self._begin + len(held)
        self._given[id(window)] = self._begin, self._asked, self._all_of_it(self._asked)
        return window

    def covers(self, window: Window) -> bool:
        """Whether this window holds all the speech so far, unforced, so that its text serves as the final one."""
        entry = self._given.get(id(window))
        return not window.prefix and entry is not None and self._all_of_it(entry[1])

    def reaches(self, seconds: float) -> bool:
        """Whether the text is of all the speech up to there, no word of it forced. While it is not, decode
        another final window.
        """
        return 0 < self._unforced >= round((seconds - SLACK) * SAMPLE_RATE)

    def accept(self, window: Window, transcription: Transcription) -> None:
        """Take a window's text. One that began before audio was dropped, or ends earlier than another whose
        text is known, is ignored, and so is a withheld one. Raises ValueError for a window that was not given
        out here.
        """
        entry = self._given.pop(id(window), None)
        if entry is None:
            raise ValueError("this window is not one of this utterance's, or was accepted before")
        begin, end, all_there_was = entry
        if transcription.withheld or begin != self._begin or end < self._accepted:
            return
        self._accepted = end
        self._unforced = 0 if window.prefix else end
        words = transcription.text.split()
        whole = window.final and all_there_was
        if whole:
            self._agreed = words
        elif not self._final:
            self._agreed = words[: _agreement(self._words, words[: max(0, len(words) - UNSTABLE)])]
        else:  # after a final text that speech went on from, agreement starts anew
            self._agreed = words[: _agreement(self._agreed, words[: max(0, len(words) - UNSTABLE)])]
        self._words, self._final = words, whole
        if not whole and window.seconds > TRIM:
            self._drop(transcription, full=window.seconds >= LONGEST)

    def _drop(self, transcription: Transcription, *, full: bool) -> None:
        """Give up the audio of committed segments; of a full window all segments but the last."""
        seconds = (self._accepted - self._begin) / SAMPLE_RATE
        words = count = 0
        at = 0.0
        segments = transcription.segments
        for segment in segments:
            words += len(segment.text.split())
            settled = words <= len(self._agreed) or (full and segment is not segments[-1])
            if settled and segment.end <= seconds - PAUSE:
                count, at = words, segment.end
        if full and at < 1.0:
            # One endless segment, or none: nothing tells where its words are, so all of it goes at once.
            count, at = len(self._words), seconds
        if at <= 0.0:
            return
        self._done += self._words[:count]
        self._words, self._agreed = self._words[count:], self._agreed[count:]
        cut = round(at * SAMPLE_RATE)
        self._samples = [np.concatenate(self._samples)[cut:]]
        self._begin += cut

    def _all_of_it(self, end: int) -> bool:
        return self._end - end <= round(SLACK * SAMPLE_RATE)

    @property
    def committed(self) -> str:
        """The words that can be relied on."""
        return " ".join(self._done + self._agreed)

    @property
    def hypothesis(self) -> str:
        """The words after them, which may still change."""
        return " ".join(self._words[len(self._agreed) :])

    @property
    def text(self) -> str:
        """The best text known: committed words and hypothesis."""
        return " ".join(self._done + self._words)


def _agreement(before: Sequence[str], now: Sequence[str]) -> int:
    """How many words at the head are the same, case and punctuation aside."""
    count = 0
    for old, new in zip(before, now, strict=False):
        if _bare(old) != _bare(new):
            break
        count += 1
    return count


def _bare(word: str) -> str:
    return "".join(c for c in word.casefold() if c.isalnum()) or word
