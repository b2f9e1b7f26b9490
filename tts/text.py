"""Where a streamed reply is cut into clauses, and what of each clause is said aloud.

A voice needs a stretch of text to speak well, a caller needs the first sound soon. `Clauses` is a push
object that weighs the two: the first clause may be short, later ones run to the end of the sentence.

    break found at           first clause                        later clauses
    end of block, sentence   always                              always
    , ; : and dashes         from 2 words on ("Yes," waits)      from 60 characters on, or from as many
                                                                 as were spoken before, if that is less
    before a joint word      from 3 words on                     never
    any other word           from 5 words on                     from 200 characters on

The middle rule of the last column keeps the sound whole: a model writes a few times faster than a voice
speaks, so what plays now covers the making of a next clause about as long as itself.

The decision looks at the characters so far, one after the other, and at nothing else: how they were cut
into deltas cannot change where the clauses end. A break lies after white space (or after an end mark of a
script that writes without it) and is judged when the next character is known, so "3.14", "10:30", "U.S." and
addresses are never cut; a joint word is judged when it is complete. White space goes with the clause before
it. The clauses, joined, are the text, whatever it is.

Three kinds of region, each cut from the others and kept across clauses: prose; a hidden one (`<think>` and
its like, up to the closing tag or the end), never spoken; fenced code, of which "Code block." is said once.
English rules; text of other scripts passes through.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from .spoken import spoken

FIRST_PHRASE = 2
FIRST_JOINT = 3
FIRST_WORDS = 5
"""Words from which the first clause may end at punctuation, before a joint word, at any word."""

CLAUSE_CHARACTERS = 60
MOST_CHARACTERS = 200
SLACK = 1.3
"""Beyond a limit times this, a clause ends even after a word that leans on the next, or inside a link."""


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


ARTICLES = _set("a an the this that these those my your his her its our their no some any every each")
JOINTS = _set(
    "about across after against along although among and around as at because before behind between but by "
    "during for from if in into like near of on or over since so than that through to under unless until "
    "when where whether which while who whose with within without"
)
"""Words that begin a phrase: a speaker may breathe before one, and not after."""

LEANING = ARTICLES | JOINTS | _set("not such very more most mr mrs ms dr st prof")

NO_END = _set(
    "mr mrs ms dr prof st mt ft gen gov sen rep capt lt col sgt rev hon fr vs approx fig figs cf ca eq ch "
    "vol pp ed eds viz resp incl excl dept est tel jan feb mar apr jun jul aug sep sept oct nov dec"
)
"""Abbreviations whose full stop ends no sentence."""

MAY_END = _set("etc al inc ltd co corp jr sr bros ave blvd rd min max hrs lbs oz")
"""Abbreviations that may stand last: before a capital their stop counts as clause punctuation."""

CLOSERS = "\"'”’»)]}*_~`」』）】"
WIDE_ENDS = "。！？｡．"
WIDE_COMMAS = "，、；："
BLOCK_LINE = re.compile(r"\s*(?:[-*+•]\s|\d{1,3}[.)]\s|#{1,6}\s|>|\||```|~~~|[-*_=]{3,}\s*$)")
BLOCK_START = "#>|•-*+`~"
LIST_NUMBER = re.compile(r"\s*(?:>\s*)*\d{1,3}[.)]$")
DOTTED = re.compile(r"(?:[^\W\d_]{1,2}\.)+$")
FENCE = re.compile(r"\s*(?:[-*+]\s+|\d{1,3}[.)]\s+)?(`{3,}|~{3,})([^`\n]*)$")
HELD_LINE = re.compile(r"\s*(?:\||(?:[-*+]\s+|\d{1,3}[.)]\s+)?(?:```|~~~))")
"""A table row, or what may turn out to open a code block: a line that is judged whole."""
TAGS = r"(?:think|thinking|thought|thoughts|reasoning|reflection)"
OPEN_TAG = re.compile(rf"(?<!`)(?:<\|?{TAGS}\|?>|\[THINK\]|◁think▷)$", re.IGNORECASE)
CLOSE_TAG = re.compile(
    rf"(?:<\|?/\|?{TAGS}\|?>|<\|(?:end_?(?:of_?)?){TAGS}\|>|\[/THINK\]|◁/think▷)$", re.IGNORECASE
)
TAG_ENDS = ">]▷"

Strength = Literal["sentence", "clause", "word", ""]


@dataclass(frozen=True, slots=True)
class Clause:
    """One stretch of a reply.

    text: the exact slice; all slices joined are the reply. speech: what a voice is to say, "" for nothing.
    """

    text: str
    speech: str


class Clauses:
    """Cuts one reply. After `flush` it is ready for the next."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._pending = ""
        """What belongs to no clause yet."""
        self._line = ""
        """The current line so far, also what of it was cut."""
        self._line_start = True
        """Whether `_pending` begins a line."""
        self._fence = ""
        """The marker that closes the open code block, "" outside one."""
        self._hidden = False
        self._before = 0
        """Characters of the clauses that were spoken."""

    def push(self, delta: str) -> list[Clause]:
        """The clauses that this piece of the reply completes, in order."""
        out: list[Clause] = []
        for char in delta:
            if self._hidden:
                self._step_hidden(char, out)
            elif self._fence:
                self._step_code(char, out)
            else:
                self._step_prose(char, out)
        return out

    def flush(self) -> list[Clause]:
        """The rest of the reply, at most one clause. Ends what was left open: a tag, a code block, a link."""
        out: list[Clause] = []
        if self._hidden or self._fence:
            self._emit(len(self._pending), out, speech="")
        elif FENCE.match(self._line) and self._line.endswith(self._pending.lstrip()):
            self._emit(len(self._pending), out, speech="Code block.")
        else:
            self._emit(len(self._pending), out, block=self._pending.endswith("\n"))
        self._reset()
        return out

    def _emit(self, size: int, out: list[Clause], *, speech: str | None = None, block: bool = False) -> None:
        """Cut the first `size` pending characters; speech None works it out from the text."""
        text, self._pending = self._pending[:size], self._pending[size:]
        if not text:
            return
        if speech is None:
            speech = spoken(text, line_start=self._line_start, block=block)
        if speech:
            self._before += len(text)
        self._line_start = "\n" in text[len(text.rstrip()) :]
        out.append(Clause(text, speech))

    # --- regions ----------------------------------------------------------------------------------------

    def _step_hidden(self, char: str, out: list[Clause]) -> None:
        self._pending += char
        closed = char in TAG_ENDS and CLOSE_TAG.search(self._pending)
        if closed:
            self._hidden, self._line = False, ""
        if closed or char == "\n" or (char.isspace() and len(self._pending) >= MOST_CHARACTERS):
            self._emit(len(self._pending), out, speech="")
            self._line_start = True

    def _step_code(self, char: str, out: list[Clause]) -> None:
        self._pending += char
        if char != "\n":
            return
        line = self._pending.strip()
        if line.startswith(self._fence) and not line.strip(self._fence[0]):
            self._fence = ""
        self._emit(len(self._pending), out, speech="")
        self._line = ""

    def _step_prose(self, char: str, out: list[Clause]) -> None:
        if not HELD_LINE.match(self._line):
            self._cut(char, out)
        self._pending += char
        self._line = "" if char == "\n" else self._line + char
        if char == "\n":
            self._open_fence(out)
        elif char in TAG_ENDS and (tag := OPEN_TAG.search(self._pending)):
            self._emit(tag.start(), out)
            self._hidden = True

    def _open_fence(self, out: list[Clause]) -> None:
        """Whether the line that just ended opens a code block: inline code may look like it until then."""
        body = self._pending[:-1]
        start = body.rfind("\n") + 1
        if fence := FENCE.match(body, start):
            self._emit(start, out, block=True)
            self._fence = fence[1]
            self._emit(len(self._pending), out, speech="Code block.")

    # --- breaks in prose --------------------------------------------------------------------------------

    def _cut(self, char: str, out: list[Clause]) -> None:
        """Judge the break that `char` decides: the one before it, or the one before the word it ends."""
        pending = self._pending
        body = pending.rstrip()
        if not body:
            return
        if char.isspace():
            if len(body) == len(pending) and not self._before:
                self._cut_joint(out)
        elif len(body) < len(pending) or body.rstrip(CLOSERS)[-1:] in tuple(WIDE_ENDS + WIDE_COMMAS + "—"):
            self._cut_here(body, char, out)

    def _cut_joint(self, out: list[Clause]) -> None:
        """A word is complete: may the first clause end before it?"""
        size = len(self._pending.rstrip()) - len(self._pending.split()[-1])
        words = _words(self._pending[:size])
        joint = self._pending[size:].strip(CLOSERS).lower() in JOINTS
        if joint and len(words) >= FIRST_JOINT and words[-1] not in LEANING and not self._in_link():
            self._emit(size, out)

    def _cut_here(self, body: str, char: str, out: list[Clause]) -> None:
        gap = self._pending[len(body) :]
        if self._ends_block(body, gap, char):
            self._emit(len(self._pending), out, block=True)
            return
        length = len(body)
        if self._in_link() and length < MOST_CHARACTERS * SLACK:
            return
        strength = _strength(body, gap, char, self._line)
        words = _words(body)
        if strength == "sentence":
            cut = True
        elif strength == "clause":
            first, later = len(words) >= FIRST_PHRASE, length >= min(CLAUSE_CHARACTERS, self._before)
            cut = later if self._before else first
        elif strength == "word":
            size, limit = (length, MOST_CHARACTERS) if self._before else (len(words), FIRST_WORDS)
            leans = bool(words) and words[-1] in LEANING
            cut = size >= limit * SLACK or (size >= limit and not leans)
        else:
            cut = False
        if cut:
            self._emit(len(self._pending), out)

    def _ends_block(self, body: str, gap: str, char: str) -> bool:
        """A paragraph, heading, list item, table row: what markdown sets apart."""
        if "\n" not in gap:
            return False
        last = body[body.rfind("\n") + 1 :]
        return (
            gap.count("\n") > 1
            or char in BLOCK_START
            or char.isdigit()
            or BLOCK_LINE.match(last + " ") is not None
        )

    def _in_link(self) -> bool:
        """Inside the brackets of what may become [text](address)."""
        return self._pending.rfind("[") > self._pending.rfind("]")


def _words(text: str) -> list[str]:
    """The words of a text, lower case; what holds no letter or digit is no word."""
    return [word for raw in text.split() if (word := re.sub(r"[\W_]+", "", raw).lower())]


def _strength(body: str, gap: str, char: str, line: str) -> Strength:
    """How strong the break between `body` + `gap` and `char` is: "sentence", "clause", "word" or ""."""
    bare = body.rstrip(CLOSERS)
    end = bare[-1:]
    if end and end in WIDE_ENDS:
        return "" if char in CLOSERS + WIDE_ENDS else "sentence"
    if not gap:
        return "" if char in CLOSERS + WIDE_COMMAS + "—" else "clause"
    if end and end in ".!?…":
        if end != "." or bare.endswith(".."):
            return "clause" if char.islower() else "sentence"
        return _full_stop(bare, char, line)
    last = bare.split()[-1:]
    if last in (["-"], ["--"]) or (end and end in ",;:—–" + WIDE_COMMAS):
        return "clause"
    return "word"


def _full_stop(bare: str, char: str, line: str) -> Strength:
    """What a single full stop at the end of `bare` is worth before `char`."""
    if LIST_NUMBER.match(line.rstrip()):
        return ""
    token = bare.split()[-1].lstrip("\"'“‘([{*_")
    name = token[:-1].lower()
    if char.islower() or name in NO_END or (name in ("no", "nos", "p") and char.isdigit()):
        return "word"
    if len(name) == 1 and token[0].isupper() and token != "I.":
        return "word"
    if name in MAY_END or (DOTTED.match(token) and token.count(".") > 1):
        return "word" if token.lower() in ("e.g.", "i.e.") else "clause"
    return "sentence"
