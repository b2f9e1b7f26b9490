"""Long recordings: where to cut them, and how what was read of the pieces becomes one text. Pure.

    samples, probabilities of speech --Planner--> Chunk ... Chunk       at most 30 s each, cut in pauses
    Chunk, Transcription             --unread---> what stands, and Chunks to read again
    Chunk, Transcription             --Stitcher-> Passages: times in the recording, text to be joined

A chunk's place is a count of samples, so times do not drift, however long the recording. Chunks share no
sample, so no word is in two of them; where speech makes no pause in 30 s, the cut is at the quietest spot.
Only speech is in chunks: what is silence, noise or music to the detector is never read. A recogniser may stop
reading early or skip a part; speech that no segment covers is given to it again, alone.

Nothing here reads a clock, decodes or waits; memory is bounded by a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..pipeline.events import Samples
from .base import SAMPLE_RATE, Segment, Token, Transcription, Word
from .vad import FRAME, FRAME_SECONDS, HYSTERESIS
from .words import joint

LONGEST = int(30.0 / FRAME_SECONDS)
"""Frames of a chunk, at most."""
EARLIEST_CUT = 0.4
"""Part of a full chunk before which it is not cut."""
PAUSE = 3
"""Frames of silence in which a full chunk may be cut."""
ENDING = 1.5, 3.0
"""Seconds of silence that end a chunk of at least LONG seconds, and a shorter one: a word with its sentence is
understood better than alone."""
LONG = 8.0
MIN_FRAMES = 3
"""Frames of speech that are no click."""
ABOVE = 0.3
"""By how much a stretch must rise above the threshold once; music and animals stay below."""
FAINT = 32
"""Frames of a stretch that is speech without rising so: an engine or an animal does not last so long."""
NEAR = 1.0
"""Seconds from speech within which a fainter and shorter stretch is more of it."""

UNREAD = 0.6
"""Seconds of speech without a segment that are read again."""
REACH = 0.3
"""Seconds by which a segment's times may be wrong."""
SHORTEST = 0.05
"""Seconds of a segment or word, where there is room."""
DOUBTED = -1.0
"""avg_logprob below which the second reading of a gap is no speech after all."""

Span = tuple[float, float]
"""(start, end) in seconds of the recording."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stretch of a recording to be read as one window.

    start: its first sample in the recording. samples: 16 kHz mono, at most 30 s. spans: its speech, in order.
    """

    start: int
    samples: Samples = field(repr=False)
    spans: tuple[Span, ...]

    @property
    def begin(self) -> float:
        return self.start / SAMPLE_RATE

    @property
    def end(self) -> float:
        return (self.start + len(self.samples)) / SAMPLE_RATE

    @property
    def speech(self) -> float:
        """Seconds of speech in it."""
        return sum(end - start for start, end in self.spans)

    def part(self, begin: float, end: float) -> Chunk:
        """The stretch of it between two times of the recording."""
        first = min(max(round(begin * SAMPLE_RATE) - self.start, 0), len(self.samples))
        last = min(max(round(end * SAMPLE_RATE) - self.start, first), len(self.samples))
        inside = tuple((max(a, begin), min(b, end)) for a, b in self.spans if a < end and b > begin)
        return Chunk(self.start + first, self.samples[first:last], inside)


# --- where to cut ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Run:
    """Frames in a row, from start up to end, that sound like speech. peak: their highest probability."""

    start: int
    end: int
    peak: float


class Planner:
    """Cuts a recording into chunks while it is heard.

    threshold: probability from which a frame is speech, in (0, 1). padding: seconds around speech that go with
    it. silence: seconds of silence that part two spans.
    """

    def __init__(self, *, threshold: float = 0.5, padding: float = 0.3, silence: float = 0.2) -> None:
        self._enter = threshold
        self._leave = max(threshold - HYSTERESIS, 0.01)
        self._peak = min(0.95, threshold + ABOVE)
        self._padding = round(padding / FRAME_SECONDS)
        self._silence = max(1, round(silence / FRAME_SECONDS))
        self._frames: list[Samples] = []
        self._base = 0  # number of the first frame held
        self._runs: list[_Run] = []
        self._on = False
        self._begin: int | None = None  # first frame of the open chunk
        self._last = -(10**9)  # end of the last frame of speech
        self._floor = 0  # no chunk begins before it

    @property
    def _now(self) -> int:
        return self._base + len(self._frames)

    def push(self, samples: Samples, probabilities: NDArray[np.float32]) -> list[Chunk]:
        """The chunks that these frames complete. samples: (k * FRAME,); probabilities: (k,) of speech in each."""
        chunks: list[Chunk] = []
        for frame, probability in zip(samples.reshape(-1, FRAME), probabilities, strict=True):
            self._frames.append(frame)
            self._hear(float(probability))
            if self._begin is None:
                self._forget()
                continue
            length = self._now - self._begin
            long = length * FRAME_SECONDS >= LONG
            if (self._now - self._last) * FRAME_SECONDS >= ENDING[not long]:
                chunks.append(self._close(min(self._now, self._last + self._padding)))
                self._begin = None
            elif length >= LONGEST:
                chunks.append(self._cut())
        return chunks

    def finish(self) -> list[Chunk]:
        """The last chunk, where speech is still open."""
        if self._begin is None:
            return []
        chunk = self._close(min(self._now, self._last + self._padding))
        self._begin = None
        return [chunk]

    def _hear(self, probability: float) -> None:
        now = self._now
        if probability < (self._leave if self._on else self._enter):
            self._on = False
            return
        if self._on:
            self._runs[-1].end, self._runs[-1].peak = now, max(self._runs[-1].peak, probability)
        else:
            self._runs.append(_Run(now - 1, now, probability))
            self._on = True
        run = self._runs[-1]
        if self._counts(run):
            if self._begin is None:
                # What came just before may be a faint beginning.
                early = [r for r in self._runs if (run.start - r.end) * FRAME_SECONDS < NEAR / 2]
                self._begin = max(self._floor, self._base, early[0].start - self._padding)
            self._last = now

    def _counts(self, run: _Run) -> bool:
        frames = run.end - run.start
        near = (run.start - self._last) * FRAME_SECONDS < NEAR
        return (frames >= MIN_FRAMES and run.peak >= self._peak) or frames >= FAINT or (near and frames >= 2)

    def _forget(self) -> None:
        """Drop what no chunk can begin with any more."""
        keep = self._now - self._padding - round(NEAR / FRAME_SECONDS)
        if self._on:
            keep = min(keep, max(self._runs[-1].start, self._now - LONGEST // 2) - self._padding)
        self._drop(min(keep, self._now))

    def _drop(self, upto: int) -> None:
        if upto > self._base:
            del self._frames[: upto - self._base]
            self._base = upto
            self._runs = [run for run in self._runs if run.end > upto]

    def _close(self, end: int) -> Chunk:
        """The open chunk up to this frame; what is before it is dropped."""
        assert self._begin is not None
        begin, end = self._begin, max(end, self._begin + 1)
        held = self._frames[begin - self._base : end - self._base]
        spans = self._spans(begin, end)
        self._floor = end
        self._drop(end)
        return Chunk(begin * FRAME, np.concatenate(held), spans)

    def _spans(self, begin: int, end: int) -> tuple[Span, ...]:
        merged: list[tuple[int, int]] = []
        for run in self._runs:
            first, last = max(run.start, begin), min(run.end, end)
            if first >= last or run.end - run.start < 2:
                continue
            if merged and first - merged[-1][1] < self._silence:
                merged[-1] = merged[-1][0], last
            else:
                merged.append((first, last))
        return tuple((a * FRAME_SECONDS, b * FRAME_SECONDS) for a, b in merged)

    def _cut(self) -> Chunk:
        """The full chunk up to its best pause; what follows it stays open."""
        assert self._begin is not None
        begin, now = self._begin, self._now
        speaking = np.zeros(now - begin, bool)
        for run in self._runs:
            speaking[max(0, run.start - begin) : max(0, run.end - begin)] = True
        at = begin + _best_cut(speaking, self._frames[begin - self._base :])
        after = [run for run in self._runs if run.end > at and self._counts(run)]
        heard = max((min(run.end, at) for run in self._runs if run.start < at), default=at)
        chunk = self._close(min(at, heard + self._padding))
        self._floor = at
        begins = max(at, after[0].start - self._padding) if after else None
        self._begin = begins
        self._drop(begins if begins is not None else min(at, self._now))
        return chunk


def _best_cut(speaking: NDArray[np.bool_], frames: Sequence[Samples]) -> int:
    """The frame before which to cut: in the longest pause of the later part, or at the quietest spot of it."""
    first = round(len(speaking) * EARLIEST_CUT)
    edges = np.diff(np.concatenate([[1], speaking[first:].astype(np.int8), [1]]))
    starts, ends = np.flatnonzero(edges == -1), np.flatnonzero(edges == 1)
    if len(starts) and (ends - starts).max() >= PAUSE:
        # Among long pauses the later one: a second of silence parts as well as two.
        score = np.minimum(ends - starts, 30) + 10 * ends / len(speaking)
        best = int(score.argmax())
        return first + int(starts[best] + ends[best]) // 2
    later = np.stack(frames[first : len(speaking)])
    energy = np.convolve(np.square(later).mean(axis=1), np.ones(3), mode="valid")
    return first + 1 + int(energy.argmin())


# --- what was not read ----------------------------------------------------------------------------------


def unread(chunk: Chunk, found: Transcription) -> tuple[Transcription, list[Chunk]]:
    """(what stands of a transcription, the parts of its chunk to read again), the parts in order.

    A text that ran out of tokens stands up to its last whole segment. A chunk with several stretches of speech
    of which nothing was understood is read in halves: one bad stretch does not silence the others.
    """
    segments = found.segments
    if found.unfinished:
        segments = segments[:-1]
    if not segments:
        divisible = found.unfinished or (len(chunk.spans) > 1 and chunk.speech >= 2 * UNREAD)
        return replace(found, text="", segments=()), halves(chunk) if divisible else []
    kept = replace(found, segments=segments)
    # Between the end of each segment, or the chunk's beginning, and the beginning of the next.
    ends = [chunk.begin, *(chunk.begin + segment.end for segment in segments)]
    begins = [*(chunk.begin + segment.start for segment in segments), chunk.end]
    wanted: list[Chunk] = []
    for number, (before, after) in enumerate(zip(ends, begins, strict=True)):
        rest = found.unfinished and number == len(segments)
        low = before if number == 0 or rest else before + REACH
        high = after if number == len(segments) else after - REACH
        inside = [(max(a, low), min(b, high)) for a, b in chunk.spans if a < high and b > low]
        if sum(b - a for a, b in inside) >= UNREAD:
            wanted.append(chunk.part(max(before, inside[0][0] - REACH), min(after, inside[-1][1] + REACH)))
    return kept, wanted


Part = tuple[Chunk, Transcription]
"""What was read of a chunk."""


def arranged(first: Part, again: Sequence[Part]) -> list[Part]:
    """The segments of a reading and of what was read again, one to a part, in order of time.

    What was read again counts only where it is believable, and no echo of the segment beside it.
    """
    parts = [(first[0], replace(first[1], segments=(segment,))) for segment in first[1].segments]
    for chunk, found in again:
        if found.avg_logprob < DOUBTED:
            continue
        for segment in found.segments:
            beside = [_bare(f.segments[0].text) for c, f in parts if abs(c.begin - chunk.begin) < 30.0]
            said = _bare(segment.text)
            if said and not any(text.endswith(said) or text.startswith(said) for text in beside):
                parts.append((chunk, replace(found, segments=(segment,))))
    return sorted(parts, key=lambda part: part[0].begin + part[1].segments[0].start)


def halves(chunk: Chunk) -> list[Chunk]:
    """A chunk cut in two at its best pause; itself is too short to be cut when nothing is returned."""
    if chunk.end - chunk.begin < 1.0:
        return []
    gaps = [((b + c) / 2, c - b) for (_, b), (c, _) in pairwise(chunk.spans)]
    middle = (chunk.begin + chunk.end) / 2
    length = chunk.end - chunk.begin
    at = max(gaps, key=lambda gap: gap[1] - abs(gap[0] - middle) / length, default=(middle, 0.0))[0]
    return [part for part in (chunk.part(chunk.begin, at), chunk.part(at, chunk.end)) if part.spans]


def _bare(text: str) -> str:
    return "".join(c for c in text.casefold() if c.isalnum())


# --- one text -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Passage:
    """A segment of the recording's text; start and end in seconds of the recording, never decreasing.

    lead: what stands between it and the text before it, a space or nothing. seek: first sample of the chunk
    it was read from. The scores are the chunk's, as Whisper defines them.
    """

    number: int
    start: float
    end: float
    lead: str
    text: str
    seek: int
    ids: tuple[int, ...]
    words: tuple[Word, ...]
    tokens: tuple[Token, ...]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class Stitcher:
    """Puts transcriptions of chunks, given in order, behind each other."""

    def __init__(self) -> None:
        self._number = 0
        self._end = 0.0
        self._before = ""

    def add(self, chunk: Chunk, found: Transcription) -> list[Passage]:
        return [self._passage(chunk, found, segment) for segment in found.segments]

    def _passage(self, chunk: Chunk, found: Transcription, segment: Segment) -> Passage:
        start, end = _snapped(chunk.begin + segment.start, chunk.begin + segment.end, chunk.spans)
        start = min(max(start, self._end), chunk.end)
        end = min(max(end, start + SHORTEST), chunk.end)
        passage = Passage(
            self._number,
            start,
            end,
            joint(self._before, segment.text),
            segment.text,
            chunk.start,
            segment.ids,
            tuple(_placed(segment.words, chunk, start, end)),
            segment.tokens,
            found.temperature,
            found.avg_logprob,
            found.compression_ratio,
            found.no_speech_prob,
        )
        self._number += 1
        self._end = end
        self._before = segment.text
        return passage


def _placed(words: Sequence[Word], chunk: Chunk, start: float, end: float) -> Iterator[Word]:
    """The words of a segment at their times in the recording, inside the segment and in order."""
    at = start
    for word in words:
        a, b = _snapped(chunk.begin + word.start, chunk.begin + word.end, chunk.spans)
        a = min(max(a, at), end)
        at = min(max(b, a), end)
        yield Word(a, at, word.text)


def _snapped(start: float, end: float, spans: Sequence[Span]) -> Span:
    """Times that fall into silence moved to the speech they belong to."""
    inside = [(a, b) for a, b in spans if a < end and b > start]
    if not inside:
        return start, end
    return max(start, inside[0][0]), min(end, inside[-1][1])
