"""Which regular expressions the engine's grammar library holds strings to. Pure.

In JSON a quotation mark, a backslash and a control character are written as two characters or more. The library
gets that wrong in two places (tests/test_patterns.py has the proof): after such a character that stands by itself
it forgets the rest of the pattern, and from a negated class that names one it lets it through all the same. Such
patterns are refused; classes that have these characters without naming them (`.`, `\\s`, `[^a]`) are right.
"""

from __future__ import annotations

import re
from functools import lru_cache

from llguidance import LLMatcher

_SIMPLE = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
_CODE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|[xuU]\{([0-9A-Fa-f]+)\}|U([0-9A-Fa-f]{8}))")


@lru_cache(maxsize=256)
def refusal(pattern: str) -> str:
    """Why a pattern cannot be held to; empty where it can."""
    failed, messages = LLMatcher.validate_grammar_with_warnings(
        LLMatcher.grammar_from_json_schema({"type": "string", "pattern": pattern})
    )
    if failed:
        said = messages[0].rpartition("error: ")[2] or "it is no regular expression"
        return " ".join(said.partition("\n   1 |")[0].split()).rstrip(".")
    if _escaped(pattern):
        return "a quotation mark, backslash or control character is only supported in a class of several"
    return ""


def _escaped(pattern: str) -> bool:
    """Whether a character that JSON escapes stands by itself, or is named in a negated class."""
    at = 0
    while at < len(pattern):
        if pattern[at] == "[":
            end, named = _class(pattern, at)
            if named and (pattern.startswith("[^", at) or _single(pattern[at + 1 : end - 1])):
                return True
            at = end
            continue
        code, at = _character(pattern, at)
        if code is not None and _special(code, code):
            return True
    return False


def _single(members: str) -> bool:
    """Whether a class has one character alone, which the library takes for that character by itself."""
    found: set[int | None] = set()
    at = 0
    while at < len(members):
        code, at = _character(members, at)
        found.add(code)
    return len(found - {ord("-")}) <= 1


def _class(pattern: str, at: int) -> tuple[int, bool]:
    """(where a class ends, whether it names a character that JSON escapes); classes may nest."""
    at += 2 if pattern.startswith("[^", at) else 1
    named = False
    first = True
    while at < len(pattern) and (pattern[at] != "]" or first):
        first = False
        if pattern[at] == "[":
            # What a class within a class adds or takes away is not followed.
            at, _ = _class(pattern, at)
            named = True
            continue
        low, at = _character(pattern, at)
        high = low
        if pattern.startswith("-", at) and not pattern.startswith("-]", at):
            high, at = _character(pattern, at + 1)
        if low is not None and high is not None and _special(low, high):
            named = True
    return at + 1, named


def _character(pattern: str, at: int) -> tuple[int | None, int]:
    """(the code point of the one that is written here, None for a class of them; where it ends)"""
    if pattern[at] != "\\" or at + 1 == len(pattern):
        return ord(pattern[at]), at + 1
    if code := _CODE.match(pattern, at):
        return int(next(filter(None, code.groups())), 16), code.end()
    name = pattern[at + 1]
    if name in "pP" and pattern.startswith("{", at + 2):
        return None, pattern.find("}", at) + 1 or len(pattern)
    if name in _SIMPLE:
        return ord(_SIMPLE[name]), at + 2
    return (None if name.isalnum() else ord(name)), at + 2


def _special(low: int, high: int) -> bool:
    return any(low <= code <= high for code in (ord('"'), ord("\\"), 0x7F)) or low < 0x20
