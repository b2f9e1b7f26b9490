"""Whisper through CTranslate2, with an encoder as long as the window instead of 30 s.

The encoder's cost grows with its length, and a question lasts 3 s, so a window is padded with mel-silence to
its own length plus a margin, rounded up to a bucket (windows of one bucket make a batch). A model trained on
30 s repeats itself when its silence is short; three things hold it: timestamp tokens, whose closing one near
the end of the audio is where the text is cut; a cap on tokens by duration; and a second look: a final window
whose scores are bad is decoded again at 30 s, then with a beam. docs/decisions/0002 has the numbers.

A window of a recording (one with a `Reading`) has a beam from the start and, where scores stay bad, tokens
drawn at rising temperatures; it may have a prompt, be translated, and have its words and tokens aligned.

Text that silence, noise and music bring forth is rejected here: a transcription of them is empty.
"""

from __future__ import annotations

import math
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
from .base import Segment, Token, Transcription, Window
from .features import FRAMES_PER_SECOND, HOP, LogMel, Mel
from .words import Timed, words

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
MIN_PROBABILITY = 1e-30
"""Of a token: its logarithm must be a number."""
TAIL = 0.6
"""A segment that closes within these seconds of the audio's end is the last one."""
ASTRAY = 2.0
"""Seconds after the audio's end where no segment of it ends."""
TIMESTAMP = 0.02
"""Seconds a timestamp token counts."""
# Radford et al. 2022, section 4.5: thresholds of the decoding heuristics.
MIN_LOGPROB = -1.0
MAX_COMPRESSION = 2.4
NO_SPEECH = 0.6

MIN_CONFIDENCE = -1.4
"""avg_logprob - no_speech_prob of the worst text that may be speech. 154 spoken clips, noisy ones too, reach
-1.27 at worst; see docs/decisions/0002."""

TRANSLATED = 0.5
"""By how much less sure a translation may be: there are many ways to say it."""

FLOOR = 1e-4
"""Root mean square (-80 dBFS) below which nothing was said; whispers and bad phone lines stay above -65."""

HALLUCINATIONS = {
    *("you", "thank you", "thank you very much", "thank you for watching", "thanks for watching"),
    *("bye", "bye bye", "so", "oh", "okay", "i'm sorry", "please subscribe", "the end"),
    "subtitles by the amara org community",
}
"""What Whisper says, in lower case without punctuation, about audio without words. Real callers say some of
it too, so it is dropped only when the scores are low."""


LONGEST_PROMPT = 223
"""Tokens of text before a window that the model has room for."""
MOST_TOKENS = 224
"""That a window may have."""
TOTAL_TOKENS = 448
"""That a window may have, with what comes before it."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One way to decode.

    full: with the encoder at 30 s, not at the window's bucket. prompted: with the reading's prompt, which may
    be what misleads it.
    """

    full: bool = False
    beam: int = 1
    temperature: float = 0.0
    prompted: bool = True


TURN = (_Step(), _Step(full=True), _Step(full=True, beam=5))
"""How a turn's window is decoded: each step where the one before gave nothing to trust."""
RECORDING = (
    *(_Step(beam=5), _Step(full=True, beam=5), _Step(full=True, prompted=False)),
    *(_Step(full=True, temperature=t, prompted=False) for t in (0.2, 0.4, 0.8)),
)
"""How a recording's is."""

COUNTING = re.compile(r"1( \d)+|123\d*|one( two| three| four| five| six)+")
"""What a plucked instrument sounds like to it."""


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """Ids of the special tokens: Whisper's vocabularies differ in size, not in order."""

    end: int
    start: int
    transcribe: int
    translate: int
    before: int
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
            id_of("<|translate|>"),
            id_of("<|startofprev|>"),
            id_of("<|notimestamps|>") + 1,
        )


@dataclass(frozen=True, slots=True)
class _Attempt:
    """sound: False when its scores, or its end, say that the text is not to be trusted. early: it ends long
    before the speech does, or at no time at all."""

    transcription: Transcription
    sound: bool
    early: bool = False


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
        groups: defaultdict[tuple[int, _Step], list[int]] = defaultdict(list)
        for i, window in enumerate(windows):
            if window.seconds > 30.0:
                raise BadRequest(f"a window holds at most 30 s of audio, not {window.seconds:.1f} s")
            if _silent(window):
                results[i] = Transcription("", language=window.language or "en", no_speech_prob=1.0)
            else:
                groups[self.bucket(window), _steps(window)[0]].append(i)
        for (frames, step), members in groups.items():
            attempts = self._attempt([windows[i] for i in members], frames, step)
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
        for step in _steps(window)[1:]:
            if tried[-1].sound:
                break
            if window.reading and step == _Step(full=True, beam=5) and self.bucket(window) == FULL:
                continue  # that was the first
            [again] = self._attempt([window], FULL, step)
            if window.reading and again.sound and not again.transcription.text:
                if any(a.transcription.text for a in tried):
                    continue  # a worse try does not make hollow what another understood
                return again.transcription
            tried.append(again)
        if tried[-1].sound:
            return tried[-1].transcription
        best = max(tried, key=_worth).transcription
        if best.compression_ratio > MAX_COMPRESSION:
            return replace(best, text="", segments=())  # a loop in every attempt: nobody said it
        return best

    def _attempt(self, windows: Sequence[Window], frames: int, step: _Step) -> list[_Attempt]:
        encoded = self._encode([self._mel(window.samples) for window in windows], frames)
        languages = self._languages(windows, encoded)
        prompts = [
            self._prompt(w, language, step.prompted) for w, language in zip(windows, languages, strict=True)
        ]
        longest = max(_most_tokens(w) for w in windows)
        if len({len(prompt) for prompt in prompts}) > 1:
            # CTranslate2 wants prompts of one length in a batch.
            jobs: list[tuple[Any, list[list[int]]]] = [
                (one, [prompt]) for one, prompt in zip(_rows(encoded), prompts, strict=True)
            ]
        else:
            jobs = [(encoded, prompts)]
        generated: list[Any] = []
        for features, batch in jobs:
            generated += self._model.generate(
                features,
                batch,
                beam_size=step.beam,
                # CTranslate2 stops at half of max_length, forced tokens included.
                max_length=min(TOTAL_TOKENS, 2 * (longest + max(map(len, batch)))),
                return_scores=True,
                return_no_speech_prob=True,
                **(
                    {"sampling_topk": 0, "sampling_temperature": step.temperature} if step.temperature else {}
                ),
            )
        attempts = [
            self._read(window, language, prompt, result, longest, step.temperature)
            for window, language, prompt, result in zip(windows, languages, prompts, generated, strict=True)
        ]
        if any(window.reading and window.reading.align for window in windows):
            attempts = [
                self._aligned(window, prompt, row, attempt)
                for window, prompt, row, attempt in zip(
                    windows, prompts, _rows(encoded), attempts, strict=True
                )
            ]
        return attempts

    def _encode(self, mels: Sequence[Mel], frames: int) -> Any:
        padded = np.empty((len(mels), self._mel.n_mels, frames), np.float32)
        for row, mel in zip(padded, mels, strict=True):
            # The spectrogram's own floor is what silence after these sounds looks like.
            row[:] = mel.min()
            row[:, : mel.shape[1]] = mel[:, :frames]
        return self._model.encode(_ct2.StorageView.from_array(padded))

    def _languages(self, windows: Sequence[Window], encoded: Any) -> list[str]:
        if not self.multilingual:
            for window in windows:
                self._english_only(window)
            return ["en"] * len(windows)
        for window in windows:
            if window.language and self._tokenizer.token_to_id(f"<|{window.language}|>") is None:
                raise BadRequest(
                    f"the model does not know the language {window.language!r}", param="language"
                )
        if all(window.language for window in windows):
            return [window.language or "en" for window in windows]
        detected = [[name.strip("<|>") for name, _ in best] for best in self._model.detect_language(encoded)]
        return [
            window.language or next((code for code in best if code in _candidates(window)), best[0])
            for window, best in zip(windows, detected, strict=True)
        ]

    def _english_only(self, window: Window) -> None:
        """Raises BadRequest for a reading that a model of English alone cannot do."""
        if window.reading is None:
            return
        if window.reading.task == "translate":
            raise BadRequest("this model knows English alone, and cannot translate", param="model")
        if window.language not in (None, "en"):
            raise BadRequest(
                f"this model knows English alone, and not the language {window.language!r}", param="language"
            )

    def _prompt(self, window: Window, language: str, prompted: bool = True) -> list[int]:
        reading = window.reading
        prompt: list[int] = []
        if reading and prompted and reading.prompt.strip():
            before = self._tokenizer.encode(" " + reading.prompt.strip(), add_special_tokens=False).ids
            prompt += [self._ids.before, *before[-LONGEST_PROMPT:]]
        prompt += [self._ids.start]
        if self.multilingual:
            translate = reading is not None and reading.task == "translate"
            task = self._ids.translate if translate else self._ids.transcribe
            prompt += [self._tokenizer.token_to_id(f"<|{language}|>") or 0, task]
        if window.prefix:
            words = self._tokenizer.encode(" " + window.prefix.strip(), add_special_tokens=False).ids
            prompt += [self._ids.first_timestamp, *words]
        return prompt

    def _read(
        self,
        window: Window,
        language: str,
        prompt: Sequence[int],
        result: Any,
        longest: int,
        temperature: float = 0.0,
    ) -> _Attempt:
        ids: list[int] = list(result.sequences_ids[0])
        segments = self._segments(ids, window.seconds)
        text = " ".join(segment.text for segment in segments)
        raw = text.encode()
        room = min(MOST_TOKENS, TOTAL_TOKENS - len(prompt), longest)
        unclosed = len(ids) >= room and ids[-1] < self._ids.first_timestamp
        found = Transcription(
            text,
            segments,
            language,
            float(result.scores[0]),
            float(result.no_speech_prob),
            len(raw) / len(zlib.compress(raw)) if raw else 1.0,
            tuple(ids),
            unfinished=unclosed,
            temperature=temperature,
        )
        translated = window.reading is not None and window.reading.task == "translate"
        slack = TRANSLATED if translated else 0.0
        sound = (
            not unclosed
            and found.avg_logprob >= MIN_LOGPROB - slack
            and found.compression_ratio <= MAX_COMPRESSION
        )
        if hollow(found, slack):
            misled = prompt[0] == self._ids.before
            return _Attempt(replace(found, text="", segments=()), sound=not misled, early=misled)
        early = window.reading is not None and self._early(window, found)
        # Drawn tokens are no better at ends: what ends early then is kept.
        return _Attempt(found, sound and not (early and not temperature), early)

    def _early(self, window: Window, found: Transcription) -> bool:
        if found.segments[-1].end < window.speech - TAIL:
            return True
        astray = self._ids.first_timestamp + round((window.seconds + ASTRAY) / TIMESTAMP)
        return any(token > astray for token in found.tokens)

    def _segments(self, ids: Sequence[int], seconds: float) -> tuple[Segment, ...]:
        """Text between timestamp tokens, up to the segment that closes at the audio's end."""
        segments: list[Segment] = []
        start, said, opened = 0.0, list[int](), ()
        for token in (*ids, self._ids.first_timestamp + round(seconds / TIMESTAMP)):
            if token < self._ids.first_timestamp:
                if token < self._ids.end:
                    said.append(token)
                continue
            at = (token - self._ids.first_timestamp) * TIMESTAMP
            text = self._tokenizer.decode(said).strip()
            if text:
                end = min(max(at, start), seconds)
                segments.append(Segment(min(start, end), end, text, (*opened, *said, token)))
                if at >= seconds - TAIL:
                    break
            start, said, opened = at, [], (token,)
        return tuple(segments)

    def _aligned(self, window: Window, prompt: Sequence[int], row: Any, attempt: _Attempt) -> _Attempt:
        """With the words and tokens of its segments, where the window's reading asks for them."""
        found = attempt.transcription
        texts = [[i for i in segment.ids if i < self._ids.end] for segment in found.segments]
        ids = [i for text in texts for i in text]
        if not ids or window.reading is None or not window.reading.align:
            return attempt
        start = list(prompt[prompt.index(self._ids.start) :])
        [result] = self._model.align(row, start, [ids], max(1, round(window.seconds * FRAMES_PER_SECOND)))
        # The path goes through every token; the token after the last one is the text's end.
        begins: dict[int, float] = {}
        for token, frame in result.alignments:
            begins.setdefault(token, frame * TIMESTAMP)
        edges = [min(begins.get(i, window.seconds), window.seconds) for i in range(len(ids) + 1)]
        pieces = [_bytes_of(self._tokenizer.id_to_token(i)) for i in ids]
        scores = [math.log(max(p, MIN_PROBABILITY)) for p in result.text_token_probs]
        segments: list[Segment] = []
        at = 0
        for segment, text in zip(found.segments, texts, strict=True):
            here = range(at, at + len(text))
            at += len(text)
            segments.append(
                replace(
                    segment,
                    words=words([Timed(pieces[i], edges[i], edges[i + 1]) for i in here]),
                    tokens=tuple(Token(pieces[i], scores[i]) for i in here),
                )
            )
        return replace(attempt, transcription=replace(found, segments=tuple(segments)))


def hollow(found: Transcription, slack: float = 0.0) -> bool:
    """Whether the text was made up about audio without words. slack: by how much less sure it may be."""
    bare = re.sub(r"[^\w' ]", "", found.text.lower()).strip()
    if not re.search(r"\w", bare):
        return True
    if found.avg_logprob - found.no_speech_prob < MIN_CONFIDENCE - slack:
        return True
    if found.no_speech_prob > NO_SPEECH and found.avg_logprob < -0.3:
        return True
    unsure = found.no_speech_prob > 0.3 or found.avg_logprob < -0.55
    return unsure and (bare in HALLUCINATIONS or COUNTING.fullmatch(bare) is not None)


def _silent(window: Window) -> bool:
    """No energy at all, or a constant."""
    return len(window.samples) == 0 or float(np.std(window.samples)) < FLOOR


def _worth(attempt: _Attempt) -> tuple[bool, bool, float]:
    found = attempt.transcription
    return found.compression_ratio <= MAX_COMPRESSION, not attempt.early, found.avg_logprob


def _steps(window: Window) -> tuple[_Step, ...]:
    if window.reading is None:
        return TURN
    if window.reading.temperature:
        return (_Step(temperature=window.reading.temperature),)
    return RECORDING


def _candidates(window: Window) -> tuple[str, ...]:
    return window.reading.languages if window.reading else ()


def _rows(encoded: Any) -> list[Any]:
    """A batch's encodings one by one."""
    rows = np.asarray(encoded.to_device(_ct2.Device.cpu))
    if len(rows) == 1:
        return [encoded]
    return [_ct2.StorageView.from_array(rows[i : i + 1].copy()) for i in range(len(rows))]


def _byte_letters() -> dict[str, int]:
    """How a byte-level vocabulary writes bytes: printable ones as themselves, others from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_letters()


def _bytes_of(token: str | None) -> bytes:
    return bytes(_BYTES[letter] for letter in token or "" if letter in _BYTES)


def _most_tokens(window: Window) -> int:
    """More tokens than anyone says in that time: auctioneers reach 8 a second, readers 3 to 4."""
    return int(8 * window.seconds) + 12


def load(settings: Settings, store: Any) -> Whisper:
    """The backend's entry point: `asr.model` from the weight store, on `asr.threads` threads."""
    return Whisper(store.fetch(settings.asr.model), threads=settings.asr.threads)
