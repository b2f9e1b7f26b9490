"""What every recogniser is: windows of audio in, transcriptions out, nothing kept between calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ..pipeline.events import Samples

SAMPLE_RATE = 16_000
"""Hz of every recogniser's and detector's input."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a window of a recording is read: with more care than a turn's, which somebody waits for.

    prompt: text that came before, or words to expect; only its last 223 tokens count.
    task: "translate" gives English whatever is spoken.
    languages: two-letter codes that may be detected; empty for all.
    temperature: in [0, 1], randomness of the choice of tokens; 0 is none.
    align: give the times of words and the probabilities of tokens.
    """

    prompt: str = ""
    task: Literal["transcribe", "translate"] = "transcribe"
    languages: tuple[str, ...] = ()
    temperature: float = 0.0
    align: bool = False


@dataclass(frozen=True, slots=True)
class Window:
    """One stretch of audio to decode.

    samples: 16 kHz mono float32, shape (n,), at most 30 s.
    prefix: words already agreed at the head of these samples; the decoder is made to start with them and
        the transcription's text includes them.
    language: two-letter code, None to detect.
    final: False for a partial that only guides; True when the text will be acted on.
    reading: of a window of a recording, which has no prefix and is final; None for a turn's.
    speech: of such a window, seconds from its first sample to its last sound of speech; 0 where nobody knows.
    """

    samples: Samples
    prefix: str = ""
    language: str | None = None
    final: bool = True
    reading: Reading | None = None
    speech: float = 0.0

    @property
    def seconds(self) -> float:
        return len(self.samples) / SAMPLE_RATE


@dataclass(frozen=True, slots=True)
class Word:
    """One word with the punctuation that touches it, without spaces; start and end in seconds."""

    start: float
    end: float
    text: str


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a text. data: its UTF-8, perhaps a part of a character. logprob: at most 0."""

    data: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of one transcription; start and end in seconds from the window's first sample.

    ids: its tokens, timestamps among them. words, tokens: only where a reading asked for alignment.
    """

    start: float
    end: float
    text: str
    ids: tuple[int, ...] = field(default=(), repr=False)
    words: tuple[Word, ...] = ()
    tokens: tuple[Token, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Transcription:
    """What a window says. text is empty for silence, noise and music.

    withheld: the scores of a partial were too bad to show what it said; the next decode may do.
    unfinished: the decoder ran out of tokens before it had read the window; its last segment is a part of one.
    temperature: with which the text was made, in [0, 1].
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
    unfinished: bool = False
    temperature: float = 0.0


class Recognizer(Protocol):
    def transcribe(self, windows: Sequence[Window]) -> Sequence[Transcription]:
        """One transcription a window, in order. Blocking: call it on a worker's thread."""
        ...
