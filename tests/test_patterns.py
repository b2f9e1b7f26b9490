"""Patterns: those that are held to mean what they say, on every short text; the two that do not are refused."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from antiphon.llm import patterns
from antiphon.llm.base import ToolUse
from antiphon.llm.grammars import Guard, grammar
from antiphon.llm.structured import rule
from antiphon.pipeline.errors import EngineFailed

ALPHABET = 'ab"\\\n'
TEXTS = ["".join(letters) for size in range(4) for letters in itertools.product(ALPHABET, repeat=size)]


def differs(pattern: str) -> list[str]:
    """Texts of which the library and Python's `re` think differently."""
    form = "%llguidance {}\nstart: " + rule({"type": "string", "pattern": pattern})
    meant = re.compile(pattern.replace("$", r"\Z"))
    found: list[str] = []
    for text in TEXTS:
        guard = Guard(form)
        try:
            guard.push(json.dumps(text))
            guard.finish()
            fits = True
        except EngineFailed:
            fits = False
        if fits != bool(meant.search(text)):
            found.append(text)
    return found


@pytest.mark.parametrize(
    "pattern",
    [
        '^"[ab]+$',
        r"^\\[ab]$",
        r"\n.",
        '^[^"]+$',
        r"^[^\\]+$",
        "^[^!-#]$",
        "^[^Z-a]$",
        r"^\x22a[ab]$",
        r"a\u0022.",
    ],
)
def test_what_the_library_gets_wrong_is_refused(pattern: str) -> None:
    assert differs(pattern), "no longer wrong: it need not be refused any more"
    assert "quotation mark" in patterns.refusal(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "^[ab]+$",
        ".",
        r"^\s[ab]$",
        r"^\S+$",
        '^["a]b?$',
        r"^[\\a]{2}$",
        "^[^a]+$",
        r"^\W\w$",
        "a|b",
        "^(ab|b)*$",
    ],
)
def test_what_is_held_to_means_what_it_says(pattern: str) -> None:
    assert patterns.refusal(pattern) == ""
    assert differs(pattern) == []


@pytest.mark.parametrize("pattern", ["(", "[", "a{2,1}", "(?=a)", r"(a)\1", "*"])
def test_what_is_no_pattern_or_not_supported_is_refused(pattern: str) -> None:
    assert patterns.refusal(pattern)


@pytest.mark.parametrize(
    ("pattern", "refused"),
    [
        (r"\p{L}+", False),
        (r"^[\p{L}\d]{3}$", False),
        (r"[^\p{L}]", False),
        (r"[^[a-z]]", True),
        (r"[]a]", False),
        (r"[^]a]", False),
        (r"[a-]", False),
        (r"\/\.\-", False),
        ("é\x7f", True),
        (r"\x{41}", False),
        (r"\x{22}", True),
        (r'["]', True),
        (r'["-"]', True),
        (r'a[""]', True),
        (r'["a]', False),
    ],
)
def test_every_spelling_of_a_character_is_read(pattern: str, refused: bool) -> None:
    assert ("quotation mark" in patterns.refusal(pattern)) is refused


classes = st.builds(
    lambda negated, members: f"[{'^' * negated}{''.join(members)}]",
    st.booleans(),
    st.lists(
        st.sampled_from(["a", "b", '"', r"\\", r"\n", r"\s", r"\w", "!-#", "a-b"]), min_size=1, max_size=3
    ),
)
regexes = st.recursive(
    st.sampled_from(["a", "b", ".", '"', r"\\", r"\n", r"\s", r"\S", r"\W"]) | classes,
    lambda inner: (
        st.builds("".join, st.lists(inner, min_size=1, max_size=3))
        | st.builds("({}|{})".format, inner, inner)
        | st.builds("({}){}".format, inner, st.sampled_from(["*", "+", "?", "{1,2}"]))
    ),
    max_leaves=5,
)


@settings(max_examples=25, deadline=None)
@given(regexes, st.booleans(), st.booleans())
def test_any_pattern_that_is_held_to_means_what_it_says(regex: str, begin: bool, end: bool) -> None:
    pattern = "^" * begin + f"({regex})" + "$" * end
    assume(not patterns.refusal(pattern))
    assert grammar({"type": "string", "pattern": pattern}, ToolUse())
    assert differs(pattern) == []
