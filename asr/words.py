"""Tokens with times to words with times. Pure.

A token is bytes: a part of a character, a part of a word, or several characters. Words are made from
characters, by what Unicode says of them: a space ends a word; a Chinese character or Japanese sign is a word of
its own, because nothing separates them; punctuation belongs to the word it touches. The scripts of South-East
Asia, which set no spaces either, are cut where the tokens are, since a vowel sign alone is no word.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .base import Word

OPENING = frozenset("([{“‘«„‚¿¡「『（【《〈")
"""What touches the word after it."""
JOINING = frozenset("ー々ゝゞヽヾ")
"""Signs of no word of their own: they lengthen or repeat the one before."""

_SINGLE = (
    (0x3040, 0x30FF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)
"""Kana and Han."""
_UNSPACED = ((0x0E00, 0x0EFF), (0x0F00, 0x0FFF), (0x1000, 0x109F), (0x1780, 0x17FF))
"""Thai, Lao, Tibetan, Burmese, Khmer."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A token's bytes, spoken from start to end, in seconds."""

    data: bytes
    start: float
    end: float


def words(tokens: Sequence[Timed]) -> tuple[Word, ...]:
    """The words of one text. Their times never decrease; all their characters, but spaces, are the tokens'."""
    found: list[Word] = []
    text, start, end = "", 0.0, 0.0
    at = 0.0
    for character in _characters(tokens):
        if character.text.isspace():
            if text:
                found.append(Word(start, end, text))
            text = ""
            continue
        if text and _parts(text, character):
            found.append(Word(start, end, text))
            text = ""
        if not text:
            start = max(at, character.start)
            end = start
        text += character.text
        if _spoken(character.text):
            at = end = max(end, character.end)
    if text:
        found.append(Word(start, end, text))
    return tuple(_touching(found))


def unspaced(character: str) -> bool:
    """Whether this character's script sets no spaces between words."""
    return _in(character, _SINGLE) or _in(character, _UNSPACED)


def joint(before: str, after: str) -> str:
    """What stands between two pieces of one text: a space, or nothing in a script that sets none."""
    if not before or not after or before[-1].isspace() or after[0].isspace():
        return ""
    if _wide(before[-1]) and _wide(after[0]):
        return ""
    return " "


# --- characters -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Character:
    """first: it is the first of its token."""

    text: str
    start: float
    end: float
    first: bool


def _characters(tokens: Sequence[Timed]) -> Iterator[_Character]:
    """Whole characters; those of one token share its time evenly, but for spaces, which take none.

    Bytes that are no UTF-8 are left out.
    """
    held, start = b"", 0.0
    for token in tokens:
        start = start if held else token.start
        held += token.data
        text, held = _decoded(held)
        step = (token.end - start) / max(1, sum(not c.isspace() for c in text))
        at = start
        for i, character in enumerate(text):
            begin, at = at, at if character.isspace() else at + step
            yield _Character(character, begin, at, i == 0)


def _decoded(data: bytes) -> tuple[str, bytes]:
    """(the characters, the bytes of one that is not complete yet)."""
    try:
        return data.decode(), b""
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            return data[: error.start].decode(errors="ignore"), data[error.start :]
        return data.decode(errors="ignore"), b""


def _parts(word: str, character: _Character) -> bool:
    """Whether a word ends before this character although no space is between."""
    text = character.text
    before = next((c for c in reversed(word) if _spoken(c)), "")
    if not before or text in JOINING:
        return False  # an opening mark waits for its word
    if not _spoken(text):
        return text in OPENING and unspaced(before)
    if _in(text, _UNSPACED):
        return not _in(before, _UNSPACED) or (character.first and unicodedata.category(text)[0] != "M")
    return _in(text, _SINGLE) or unspaced(before)


def _touching(found: list[Word]) -> Iterator[Word]:
    """Marks that stand alone between spaces go to the word before them, or to the first after them."""
    held: Word | None = None
    for word in found:
        if held is not None and not (any(map(_spoken, word.text)) and any(map(_spoken, held.text))):
            held = Word(held.start, max(held.end, word.end), held.text + word.text)
            continue
        if held is not None:
            yield held
        held = word
    if held is not None:
        yield held


def _spoken(character: str) -> bool:
    return unicodedata.category(character)[0] not in "PZC"


def _wide(character: str) -> bool:
    return unspaced(character) or (
        unicodedata.east_asian_width(character) in "WF" and unicodedata.category(character)[0] == "P"
    )


def _in(character: str, blocks: Sequence[tuple[int, int]]) -> bool:
    return any(low <= ord(character) <= high for low, high in blocks)
