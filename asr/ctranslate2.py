"""Whisper through CTranslate2, with an encoder as long as the window instead of 30 s.

The encoder's cost grows with its length, and a question lasts 3 s, so a window is padded with mel-silence to
its own length plus a margin, rounded up to a bucket (windows of one bucket make a batch). A model trained on
30 s repeats itself when its silence is short; three things hold it: timestamp tokens, whose closing one near
the end of the audio is where the text is cut; a cap on tokens by duration; and a second look: a final window
whose scores are bad is decoded again at 30 s, then with a beam. docs/decisions/0002 has the numbers.

Text that silence, noise and music bring forth is rejected here: a transcription of them is empty.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ctranslate2  # pyright: ignore[reportMissingTypeStubs]
import numpy as np
import tokenizers

from ..pipeline.errors import BadRequest, EngineFailed
from ..pipeline.settings import Settings
from .base import Segment, Transcription, Window
from .features import FRAMES_PER_SECOND, HOP, LogMel, Mel

_ct2: Any = ctranslate2  # its types are unknown

FULL = 30 * FRAMES_PER_SECOND
"""Frames of the window that Whisper was trained on, and the longest its encoder takes."""
STEP = 100
"""Frames between buckets."""
MARGIN = 200
"""Frames of silence, at least, between the end of the audio and the end of its bucket."""
SHORTEST = 300
"""Frames of the shortest bucket. Far above the one that CTranslate2 misreads: encoder output of n_mels
positions (160 frames of 80 mels, 256 of 128) passes for raw features there."""
TAIL = 0.6
"""A segment that closes within these seconds of the audio's end is the last one."""
TIMESTAMP = 0.02
"""Seconds a timestamp token counts."""
# Radford et al. 2022, section 4.5: thresholds of the decoding heuristics.
MIN_LOGPROB = -1.0
MAX_COMPRESSION = 2.4
NO_SPEECH = 0.6

MIN_CONFIDENCE = -1.4
"""avg_logprob - no_speech_prob of the worst text that may be speech. 154 spoken clips, noisy ones too, reach
-1.27 at worst; see docs/decisions/0002."""

FLOOR = 1e-4
"""Root mean square (-80 dBFS) below which nothing was said; whispers and bad phone lines stay above -65."""

HALLUCINATIONS = {
    *("you", "thank you", "thank you very much", "thank you for watching", "thanks for watching"),
    *("bye", "bye bye", "so", "oh", "okay", "i'm sorry", "please subscribe", "the end"),
    "subtitles by the amara org community",
}
"""What Whisper says, in lower case without punctuation, about audio without words. Real callers say some of
it too, so it is dropped only when the scores are low."""


COUNTING = re.compile(r"1( \d)+")
"""What a plucked instrument sounds like to it."""


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """Ids of the special tokens: Whisper's vocabularies differ in size, not in order."""

    end: int
    start: int
    transcribe: int
    first_timestamp: int

    @classmethod
    def of(cls, tokenizer: tokenizers.Tokenizer) -> _Vocabulary:
        def id_of(token: str) -> int:
            found = tokenizer.token_to_id(token)
            if found is None:
                raise EngineFailed(f"tokenizer.json has no {token}: this is not a Whisper model")
            return found

        return cls(
            id_of("<|endoftext|>"),
            id_of("<|startoftranscript|>"),
            id_of("<|transcribe|>"),
            id_of("<|notimestamps|>") + 1,
        )


@dataclass(frozen=True, slots=True)
class _Attempt:
    transcription: Transcription
    sound: bool
    """False when the scores say that the text is not to be trusted."""


class Whisper:
    """A Recognizer. Holds weights and constants only: calls leave nothing behind.

    path: folder with model.bin, config.json, the vocabulary and tokenizer.json, in CTranslate2's format.
    threads: CPU threads of one call. compute_type: as CTranslate2 names them.
    Raises EngineFailed when the folder holds no Whisper model.
    """

    def __init__(
        self, path: Path | str, *, threads: int = 1, compute_type: str = "int8", device: str = "cpu"
    ) -> None:
        try:
            self._model: Any = _ct2.models.Whisper(
                str(path), device=device, compute_type=compute_type, intra_threads=threads, inter_threads=1
            )
            self._tokenizer = tokenizers.Tokenizer.from_file(str(Path(path) / "tokenizer.json"))
        except Exception as error:
            raise EngineFailed(f"{path}: cannot load it as a Whisper model: {error}") from error
        self._ids = _Vocabulary.of(self._tokenizer)
        self._mel = LogMel(int(self._model.n_mels))
        self.multilingual = bool(self._model.is_multilingual)

    def bucket(self, window: Window) -> int:
        """Frames the encoder will see; windows of one bucket make a batch."""
        wanted = -(-len(window.samples) // HOP) + MARGIN
        return min(FULL, max(SHORTEST, -(-wanted // STEP) * STEP))

    def transcribe(self, windows: Sequence[Window]) -> Sequence[Transcription]:
        """One transcription a window, in order. Blocking; a final window may be decoded up to three times.

        Raises BadRequest for a window above 30 s or a language that the model does not know.
        """
        results: dict[int, Transcription] = {}
        groups: defaultdict[int, list[int]] = defaultdict(list)
        for i, window in enumerate(windows):
            if window.seconds > 30.0:
                raise BadRequest(f"a window holds at most 30 s of audio, not {window.seconds:.1f} s")
            if _silent(window):
                results[i] = Transcription("", language=window.language or "en", no_speech_prob=1.0)
            else:
                groups[self.bucket(window)].append(i)
        for frames, members in groups.items():
            attempts = self._attempt([windows[i] for i in members], frames)
            for i, attempt in zip(members, attempts, strict=True):
                results[i] = self._settle(windows[i], attempt)
        return [results[i] for i in range(len(windows))]

    def _settle(self, window: Window, attempt: _Attempt) -> Transcription:
        """The transcription to stand by: decode again what cannot be trusted."""
        if attempt.sound:
            return attempt.transcription
        if not window.final:
            # Not worth a second look: the next partial, or the final, is near. What was agreed stands.
            return replace(attempt.transcription, text=window.prefix, segments=(), withheld=True)
        tried = [attempt]
        for beam in (1, 5):
            if tried[-1].sound:
                break
            tried += self._attempt([window], FULL, beam=beam)
        if tried[-1].sound:
            return tried[-1].transcription
        best = max(
            (a.transcription for a in tried),
            key=lambda t: (t.compression_ratio <= MAX_COMPRESSION, t.avg_logprob),
        )
        if best.compression_ratio > MAX_COMPRESSION:
            return replace(best, text="", segments=())  # a loop in every attempt: nobody said it
        return best

    def _attempt(self, windows: Sequence[Window], frames: int, *, beam: int = 1) -> list[_Attempt]:
        encoded = self._encode([self._mel(window.samples) for window in windows], frames)
        languages = self._languages(windows, encoded)
        prompts = [self._prompt(w, language) for w, language in zip(windows, languages, strict=True)]
        longest = max(_most_tokens(w) for w in windows)
        if len({len(prompt) for prompt in prompts}) > 1:
            # CTranslate2 wants prompts of one length in a batch.
            rows = np.asarray(encoded.to_device(_ct2.Device.cpu))
            singles: list[Any] = [
                _ct2.StorageView.from_array(rows[i : i + 1].copy()) for i in range(len(rows))
            ]
            jobs: list[tuple[Any, list[list[int]]]] = [
                (one, [prompt]) for one, prompt in zip(singles, prompts, strict=True)
            ]
        else:
            jobs = [(encoded, prompts)]
        generated: list[Any] = []
        for features, batch in jobs:
            generated += self._model.generate(
                features,
                batch,
                beam_size=beam,
                # CTranslate2 stops at half of max_length, forced tokens included.
                max_length=min(448, 2 * (longest + max(map(len, batch)))),
                return_scores=True,
                return_no_speech_prob=True,
            )
        return [
            self._read(window, language, prompt, result, longest)
            for window, language, prompt, result in zip(windows, languages, prompts, generated, strict=True)
        ]

    def _encode(self, mels: Sequence[Mel], frames: int) -> Any:
        padded = np.empty((len(mels), self._mel.n_mels, frames), np.float32)
        for row, mel in zip(padded, mels, strict=True):
            # The spectrogram's own floor is what silence after these sounds looks like.
            row[:] = mel.min()
            row[:, : mel.shape[1]] = mel[:, :frames]
        return self._model.encode(_ct2.StorageView.from_array(padded))

    def _languages(self, windows: Sequence[Window], encoded: Any) -> list[str]:
        if not self.multilingual:
            return ["en"] * len(windows)
        for window in windows:
            if window.language and self._tokenizer.token_to_id(f"<|{window.language}|>") is None:
                raise BadRequest(
                    f"the model does not know the language {window.language!r}", param="language"
                )
        if all(window.language for window in windows):
            return [window.language or "en" for window in windows]
        detected = [best[0][0].strip("<|>") for best in self._model.detect_language(encoded)]
        return [window.language or found for window, found in zip(windows, detected, strict=True)]

    def _prompt(self, window: Window, language: str) -> list[int]:
        prompt = [self._ids.start]
        if self.multilingual:
            prompt += [self._tokenizer.token_to_id(f"<|{language}|>") or 0, self._ids.transcribe]
        if window.prefix:
            words = self._tokenizer.encode(" " + window.prefix.strip(), add_special_tokens=False).ids
            prompt += [self._ids.first_timestamp, *words]
        return prompt

    def _read(
        self, window: Window, language: str, prompt: Sequence[int], result: Any, longest: int
    ) -> _Attempt:
        ids: list[int] = list(result.sequences_ids[0])
        segments = self._segments(ids, window.seconds)
        text = " ".join(segment.text for segment in segments)
        raw = text.encode()
        found = Transcription(
            text,
            segments,
            language,
            float(result.scores[0]),
            float(result.no_speech_prob),
            len(raw) / len(zlib.compress(raw)) if raw else 1.0,
            tuple(ids),
        )
        unclosed = len(ids) >= min(224, longest) and ids[-1] < self._ids.first_timestamp
        sound = (
            not unclosed and found.avg_logprob >= MIN_LOGPROB and found.compression_ratio <= MAX_COMPRESSION
        )
        if hollow(found):
            return _Attempt(replace(found, text="", segments=()), sound=True)
        return _Attempt(found, sound)

    def _segments(self, ids: Sequence[int], seconds: float) -> tuple[Segment, ...]:
        """Text between timestamp tokens, up to the segment that closes at the audio's end."""
        segments: list[Segment] = []
        start, words = 0.0, list[int]()
        for token in (*ids, self._ids.first_timestamp + round(seconds / TIMESTAMP)):
            if token < self._ids.first_timestamp:
                if token < self._ids.end:
                    words.append(token)
                continue
            at = (token - self._ids.first_timestamp) * TIMESTAMP
            text = self._tokenizer.decode(words).strip()
            if text:
                end = min(max(at, start), seconds)
                segments.append(Segment(min(start, end), end, text))
                if at >= seconds - TAIL:
                    break
            start, words = at, []
        return tuple(segments)


def hollow(found: Transcription) -> bool:
    """Whether the text was made up about audio without words."""
    bare = re.sub(r"[^\w' ]", "", found.text.lower()).strip()
    if not re.search(r"\w", bare):
        return True
    if found.avg_logprob - found.no_speech_prob < MIN_CONFIDENCE:
        return True
    if found.no_speech_prob > NO_SPEECH and found.avg_logprob < -0.3:
        return True
    unsure = found.no_speech_prob > 0.3 or found.avg_logprob < -0.55
    return unsure and (bare in HALLUCINATIONS or COUNTING.fullmatch(bare) is not None)


def _silent(window: Window) -> bool:
    """No energy at all, or a constant."""
    return len(window.samples) == 0 or float(np.std(window.samples)) < FLOOR


def _most_tokens(window: Window) -> int:
    """More tokens than anyone says in that time: auctioneers reach 8 a second, readers 3 to 4."""
    return int(8 * window.seconds) + 12


def load(settings: Settings, store: Any) -> Whisper:
    """The backend's entry point: `asr.model` from the weight store, on `asr.threads` threads."""
    return Whisper(store.fetch(settings.asr.model), threads=settings.asr.threads)
