"""The built-in voice: hibari, a distilled English model of 8 MB that speaks some hundred times faster than
real time on one core.

A clause is spoken sentence by sentence, each one piece of work for the model's thread, so leaving the stream
drops the sentences not begun. Reading (grapheme to phoneme) runs on that thread too.

The model surrounds every utterance with silence: 240 to 320 ms before (heard as latency) and 270 to 490 ms
after. Both are cut at -50 dBFS: to 10 ms before, and after to the pause its last mark asks for,
with 5 ms fades, so clauses follow each other as within one utterance, without a click.

The model gives every phoneme a whole number of frames, so it cannot hurry beyond twice its own pace, and misses
by a sixth before. What is asked for above FASTEST is made of FASTEST by shortening the wave.

The network's noise branch draws from a generator of fixed seed: the same words give the same samples.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from ..pipeline.admission import Service
from ..pipeline.audio import trim_leading_silence
from ..pipeline.errors import BadRequest, EngineFailed, SettingsError, WeightsError
from ..pipeline.events import Samples
from ..pipeline.worker import Worker
from .base import Voice
from .stretch import faster

if TYPE_CHECKING:
    from ..pipeline.settings import Settings

# By name, for a type checker takes `import hibari` in this folder to mean this very file.
ENGINE: Any = importlib.import_module("hibari.tts")
ABBREVIATIONS: dict[str, str] = importlib.import_module("hibari.g2p.normalize").ABBREV

MODEL = Path(ENGINE.ASSETS) / "hibari.onnx"
SHA256 = "5f70741d4e900f4e85d0037498736cc1b3e1b9a63a13546a5da1e63abf4fccd8"

SAMPLE_RATE = 24_000
LONGEST = 400
"""Phonemes that go to the network at once. Its time and memory grow faster than the length: 2500 digits in one
call took 20 s and 5 GB. People's sentences stay below."""
LONGEST_TEXT = 600
"""Characters that are read at once."""
LONG_WORD = re.compile(r"\S{60}[,.;:!?]?(?=\S)")
"""The reader's time grows with the cube of what it takes for one word: 600 characters of "a-a-a-" take half a
minute, as words of 60 a third of a second."""
LONG_NUMBER = re.compile(r"\d(?:[,.]?\d){26}[,.]?(?=[,.]?\d)")
"""The reader fails at numbers of more than 36 digits; parts of 27 are whole groups of three. Both take a mark
that follows along, for the reader joins what a space parts from a mark after it."""
SEED = 0
WARM_UP = "Zyqvora is ready."
"""Holds a word of no dictionary, so the reader's network for such words is loaded as well."""

FASTEST = 1.5
"""Pace up to which the model is asked; the lengths come out within a few hundredths there."""

HEAD = 0.01
FADE = 0.005
PAUSES = {".": 0.2, "!": 0.2, "?": 0.2, "…": 0.25, ",": 0.12, ";": 0.12, ":": 0.12, "—": 0.12}
RUN_ON = 0.04
"""Seconds of silence after the last audible sample: by the last mark, and where there is none (a clause cut
between two words). Within one utterance this voice pauses for 100 to 210 ms at its marks."""

SHORTENED = re.compile(rf"(?<![\w.])({'|'.join(re.escape(a) for a in ABBREVIATIONS if a.endswith('.'))})$")
"""What hibari would take for an abbreviation at the end of a sentence ("no." is read "number")."""


class Model(Protocol):
    """What is used of hibari's own class, which carries no types."""

    def split_sentences(self, text: str) -> list[str]: ...
    def phonemize(self, text: str) -> list[str]: ...
    def ids(self, phonemes: str) -> list[int]: ...
    def from_ids(self, ids: list[int], speed: float, rng: np.random.Generator) -> Samples: ...


@dataclass(frozen=True, slots=True)
class _Work:
    """A sentence to speak. read: the phonemes of it that are left, None for all."""

    text: str
    speed: float
    read: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Said:
    samples: Samples
    rest: tuple[str, ...]


class Hibari:
    """One loaded voice and its thread. `voices` are the names it knows."""

    sample_rate = SAMPLE_RATE
    voices: tuple[str, ...] = ("heart",)

    def __init__(self, path: Path = MODEL) -> None:
        """Load and warm up: about half a second, blocking. Raises WeightsError when `path` is not the model.

        The path is given to hibari, so it never looks for a voice to download.
        """
        _verify(path)
        self._model = cast(Model, ENGINE.Hibari(model=str(path), threads=1))
        self._worker: Worker[_Work, _Said] = Worker("tts", self._run)
        self._speak(_Work(WARM_UP, 1.0))

    @asynccontextmanager
    async def synthesize(
        self, text: str, voice: Voice, *, owner: str, deadline: float
    ) -> AsyncGenerator[AsyncIterator[Samples], None]:
        """See `Synthesizer`: one chunk a sentence. Raises BadRequest for a voice or speed that is not ours,
        and while iterating EngineFailed, or Overloaded when the queue is full.

        A later sentence's deadline is the end of the audio before it.
        """
        if voice.name not in self.voices:
            known = ", ".join(self.voices)
            raise BadRequest(f"unknown voice {voice.name!r}; this server speaks: {known}", param="voice")
        if not 0.25 <= voice.speed <= 4.0:
            raise BadRequest(f"speed is 0.25 to 4.0, not {voice.speed}", param="speed")
        async with aclosing(self._chunks(text, voice.speed, owner, deadline)) as chunks:
            yield chunks

    async def _chunks(
        self, text: str, speed: float, owner: str, deadline: float
    ) -> AsyncGenerator[Samples, None]:
        for sentence in self._model.split_sentences(text):
            for piece in readable(sentence):
                work: _Work | None = _Work(piece, speed)
                while work is not None:
                    said = await self._worker.submit(work, owner=owner, deadline=deadline)
                    if len(said.samples):
                        deadline += len(said.samples) / SAMPLE_RATE
                        yield said.samples
                    work = _Work(piece, speed, said.rest) if said.rest else None

    @property
    def waiting(self) -> int:
        """Sentences that wait for the thread."""
        return len(self._worker)

    def watch(self, report: Callable[[Service], None]) -> None:
        """Tell `report` of every sentence from now on."""
        self._worker.watch(report)

    async def aclose(self) -> None:
        """Stop the thread; what waits is cancelled. Idempotent."""
        await self._worker.aclose()

    # --- on the model's thread --------------------------------------------------------------------------

    def _run(self, batch: Sequence[_Work]) -> list[_Said | Exception]:
        try:
            return [self._speak(work) for work in batch]
        except Exception as error:
            raise EngineFailed(f"the voice failed: {error}") from error

    def _speak(self, work: _Work) -> _Said:
        """One sentence, or as much of it as goes at once; no samples when nothing in it can be said."""
        read = work.read
        if read is None:
            text = SHORTENED.sub(lambda m: f"{m[0][:-1]} .", work.text)
            read = tuple(piece for p in self._model.phonemize(text) for piece in cut(p, LONGEST))
        count, size = 1, len(read[0]) if read else 0
        while count < len(read) and (size := size + len(read[count])) <= LONGEST:
            count += 1
        now, rest = read[:count], read[count:]
        rng = np.random.default_rng(SEED)
        pace = min(work.speed, FASTEST)
        parts = [self._model.from_ids(self._model.ids(p), pace, rng) for p in now if _audible(p)]
        if not parts:
            return _Said(np.zeros(0, np.float32), rest)
        last = "" if rest else work.text.rstrip("\"'”’)] ")[-1:]
        samples = shaped(np.concatenate(parts), PAUSES.get(last, RUN_ON))
        return _Said(faster(samples, SAMPLE_RATE, work.speed / pace), rest)


def readable(sentence: str) -> Iterator[str]:
    """What is read at once, in order: the sentence itself, unless it or a word or number of it is too long."""
    parted = LONG_NUMBER.sub(r"\g<0> ", sentence)
    return cut(LONG_WORD.sub(r"\g<0> ", parted), LONGEST_TEXT)


def cut(text: str, longest: int) -> Iterator[str]:
    """A text in pieces of at most `longest` characters, at spaces where there are any; joined, it is whole."""
    while len(text) > longest:
        at = text.rfind(" ", longest // 2, longest) + 1 or longest
        yield text[:at]
        text = text[at:]
    yield text


def _audible(phonemes: str) -> bool:
    return any(char.isalpha() for char in phonemes)


def shaped(samples: Samples, pause: float) -> Samples:
    """Silence cut to HEAD before and `pause` seconds after, faded at both ends, within [-1, 1]."""
    samples = trim_leading_silence(samples, SAMPLE_RATE, keep=HEAD)
    samples = trim_leading_silence(samples[::-1], SAMPLE_RATE, keep=pause)[::-1]
    samples = np.clip(samples, -1.0, 1.0)
    size = min(round(FADE * SAMPLE_RATE), len(samples))
    ramp = np.linspace(0.0, 1.0, size, dtype=np.float32)
    samples[:size] *= ramp
    samples[len(samples) - size :] *= ramp[::-1]
    return samples


def _verify(path: Path) -> None:
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise WeightsError(f"hibari's model cannot be read: {error}; reinstall hibari-tts") from error
    if found != SHA256:
        raise WeightsError(
            f"{path} is not hibari's model (sha256 {found}, not {SHA256}); reinstall hibari-tts"
        )


def load(settings: Settings, store: Any) -> Hibari:
    """The backend's entry point. The model comes with the package, so `store` is not asked.

    Raises SettingsError for a voice that is not hibari's, WeightsError for a model file that was changed.
    """
    if settings.tts.voice not in Hibari.voices:
        known = ", ".join(Hibari.voices)
        raise SettingsError(f"tts.voice: hibari has no voice {settings.tts.voice!r}; it has: {known}")
    return Hibari()
