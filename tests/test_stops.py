"""Stop strings: nothing of one is let out, nothing else is held in, however the text comes in pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.llm.stops import StopFilter, beginning


def run(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    filter = StopFilter(stops)
    text = "".join(filter.push(piece) for piece in pieces)
    return text + filter.flush(), filter.stopped


@pytest.mark.parametrize(
    ("text", "stops", "kept"),
    [
        ("one two three", ["two"], "one "),
        ("one two three", ["four"], "one two three"),
        ("stop at once", ["stop"], ""),
        ("ends in a beginning of en", ["end."], "ends in a beginning of en"),
        ("aXbYc", ["Y", "X"], "a"),
        ("abcd", ["bcd", "c"], "a"),
        ("abcx", ["bcd", "c"], "ab"),
        ("ababac", ["abac"], "ab"),
        ("né 👩‍👩‍👧!", ["👩‍👧"], "né 👩‍"),
        ("any", ["", "y"], "an"),
    ],
)
def test_a4_the_text_ends_before_the_first_stop_string(text: str, stops: list[str], kept: str) -> None:
    for pieces in ([text], list(text)):
        assert run(pieces, stops) == (kept, kept != text)


def test_a4_what_cannot_be_a_beginning_is_let_out_at_once_and_a_beginning_is_not() -> None:
    filter = StopFilter(["\n\nUser:"])
    assert filter.push("Hello") == "Hello"
    assert filter.push(" you\n") == " you"
    assert filter.held == 1
    assert filter.push("\nUs") == ""
    assert filter.push("ual") == "\n\nUsual"
    assert filter.push("\n\nUser: x") == ""
    assert filter.stopped
    assert filter.push("more") == filter.flush() == ""


def test_a4_a_match_that_fails_at_the_end_swallows_nothing() -> None:
    filter = StopFilter(["bcd", "c"])
    assert filter.push("abc") == "a"
    assert filter.flush() == "b", "`c` is complete, and `bcd` will never be"
    assert filter.stopped


@given(
    st.text("ab\n", max_size=30),
    st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 30)),
)
def test_any_pieces_of_a_text_give_the_same(text: str, stops: list[str], cuts: list[int]) -> None:
    places = sorted({0, len(text), *(cut for cut in cuts if cut <= len(text))})
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    found = [text.find(stop) for stop in stops if stop in text]
    expected = text[: min(found)] if found else text
    assert run(pieces, stops) == (expected, bool(found))
    filter = StopFilter(stops)
    told = ""
    for piece in pieces:
        told += filter.push(piece)
        assert expected.startswith(told)


@given(st.text("ab", max_size=8), st.text("ab", min_size=1, max_size=4))
def test_a_beginning_is_the_longest_end_that_a_mark_begins_with(text: str, mark: str) -> None:
    ends = [at for at in range(len(text)) if mark.startswith(text[at:]) and text[at:] != mark]
    assert beginning(text, mark) == min(ends, default=len(text))
