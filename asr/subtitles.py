"""Cues to subtitle files, SubRip and WebVTT. Pure.

Times are rounded to whole milliseconds once, before anything is taken apart: 3.32 s is 320 ms past the third
second, and 59.9996 s is one minute. Cues never overlap, whatever their rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cue:
    """One subtitle; start and end in seconds, not negative."""

    start: float
    end: float
    text: str


def srt(cues: Iterable[Cue]) -> str:
    """A SubRip file. Without cues it is empty."""
    return "".join(
        f"{number}\n{stamp(start, ',')} --> {stamp(end, ',')}\n{text}\n\n"
        for number, (start, end, text) in enumerate(_placed(cues), 1)
    )


def vtt(cues: Iterable[Cue]) -> str:
    """A WebVTT file."""
    blocks = (
        f"{stamp(start, '.')} --> {stamp(end, '.')}\n{_escaped(text)}\n\n"
        for start, end, text in _placed(cues)
    )
    return "WEBVTT\n\n" + "".join(blocks)


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def stamp(ms: int, point: str) -> str:
    """HH:MM:SS and milliseconds after `point`; hours have more digits where they need them."""
    seconds, ms = divmod(ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{point}{ms:03}"


def _placed(cues: Iterable[Cue]) -> Iterator[tuple[int, int, str]]:
    """Start and end in ms, in order and apart; text on one line. Cues without text are left out."""
    last = 0
    for cue in cues:
        text = " ".join(cue.text.split())
        if text:
            start = max(milliseconds(cue.start), last)
            last = max(milliseconds(cue.end), start + 1)  # players refuse a cue of no length
            yield start, last, text


def _escaped(text: str) -> str:
    """WebVTT reads tags and entities in a cue."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
