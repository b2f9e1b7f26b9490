"""What every recogniser is: windows of audio in, transcriptions out, nothing kept between calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..pipeline.events import Samples

SAMPLE_RATE = 16_000
"""Hz of every recogniser's and detector's input."""


@dataclass(frozen=True, slots=True)
class Window:
    """One stretch of audio to decode.

    samples: 16 kHz mono float32, shape (n,), at most 30 s.
    prefix: words already agreed at the head of these samples; the decoder is made to start with them and
        the transcription's text includes them.
    language: two-letter code, None to detect.
    final: False for a partial that only guides; True when the text will be acted on.
    """

    samples: Samples
    prefix: str = ""
    language: str | None = None
    final: bool = True

    @property
    def seconds(self) -> float:
        return len(self.samples) / SAMPLE_RATE


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of one transcription; start and end in seconds from the window's first sample."""

    start: float
    end: float
    text: str


@dataclass(frozen=True, slots=True)
class Transcription:
    """What a window says. text is empty for silence, noise and music.

    withheld: the scores of a partial were too bad to show what it said; the next decode may do.
    avg_logprob: mean log probability of the tokens, at most 0. no_speech_prob and compression_ratio as
    Whisper defines them.
    """

    text: str
    segments: tuple[Segment, ...] = ()
    language: str = "en"
    avg_logprob: float = 0.0
    no_speech_prob: float = 0.0
    compression_ratio: float = 1.0
    tokens: tuple[int, ...] = field(default=(), repr=False)
    withheld: bool = False


class Recognizer(Protocol):
    def transcribe(self, windows: Sequence[Window]) -> Sequence[Transcription]:
        """One transcription a window, in order. Blocking: call it on a worker's thread."""
        ...
