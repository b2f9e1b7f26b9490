"""A reply read in one pass: the three filters in a row, and the tokens that belong to what is told."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from antiphon.llm.base import Delta, TokenLogprob
from antiphon.llm.reading import Reading
from antiphon.llm.thinking import ThinkingSplitter
from antiphon.llm.tools import ToolParser
from antiphon.pipeline.events import Usage

CALL = '<tool_call>\n{"name": "now", "arguments": {"a": 1}}\n</tool_call>'
USAGE = Usage(3, 2, 1)


def reading(*stop: str, thinking: bool = False, tools: bool = False, parallel: bool = True) -> Reading:
    parser = ToolParser(["now"], new_id=lambda: "call_1", parallel=parallel) if tools else None
    return Reading(stop, thinking=ThinkingSplitter() if thinking else None, tools=parser)


def token(text: str) -> TokenLogprob:
    return TokenLogprob(text, -1.0, text.encode())


def read(what: Reading, pieces: list[str], reason: Any = "stop") -> list[Delta]:
    deltas: list[Delta] = []
    for piece in pieces:
        if what.over:
            break
        if (delta := what.push(piece, [token(piece)])) is not None:
            deltas.append(delta)
    return [*deltas, what.finish(reason, USAGE)]


def joined(deltas: list[Delta]) -> tuple[str, str, str, list[str]]:
    """(text, thoughts, arguments, tokens)"""
    return (
        "".join(delta.text for delta in deltas),
        "".join(delta.reasoning for delta in deltas),
        "".join(call.arguments for delta in deltas for call in delta.calls),
        [one.token for delta in deltas for one in delta.logprobs],
    )


def test_a_plain_reply_is_passed_on_piece_by_piece_with_its_tokens() -> None:
    deltas = read(reading(), ["Hi", " you", ""])
    assert [delta.text for delta in deltas] == ["Hi", " you", "", ""]
    assert [len(delta.logprobs) for delta in deltas] == [1, 1, 1, 0]
    assert deltas[-1] == Delta("", "stop", USAGE)


def test_thoughts_calls_and_text_are_told_apart() -> None:
    pieces = ["<think>", "hm", "</think>", "\n\n", "I look.", *CALL, "\n"]
    deltas = read(reading("zzz", thinking=True, tools=True), pieces)
    assert joined(deltas) == ("I look.", "hm", '{"a": 1}', pieces)
    assert deltas[-1].finish_reason == "tool_calls"


def test_a9_tokens_are_told_with_their_text_and_never_before() -> None:
    what = reading("stop here")
    assert what.push("a", [token("a")]) == Delta("a", logprobs=(token("a"),))
    assert what.push(" stop", [token(" stop")]) == Delta(" "), "half a token's text; the token waits"
    assert what.push(" it", [token(" it")]) == Delta("stop it", logprobs=(token(" stop"), token(" it")))


def test_a4_tokens_beyond_a_stop_string_are_never_told() -> None:
    pieces = ["one", " two", " th", "ree", " four"]
    for stop, text, tokens in (
        ("wo", "one t", ["one", " two"]),
        (" two", "one", ["one"]),
        ("three", "one two ", ["one", " two", " th"]),
        ("one", "", []),
        ("five", "one two three four", pieces),
    ):
        assert joined(read(reading(stop), pieces)) == (text, "", "", tokens), stop


def test_a4_stop_strings_end_text_and_not_thoughts_or_arguments() -> None:
    pieces = ["<think>a: 1</think>", "b", *CALL, "\nc a: 1"]
    deltas = read(reading("a", thinking=True, tools=True), pieces)
    assert joined(deltas)[:3] == ("bc ", "a: 1", '{"a": 1}')
    assert joined(read(reading("bx", tools=True), ["b", CALL, "x"]))[0] == "bx", "a call came between"


def test_a6_a_reply_cut_in_its_arguments_says_so() -> None:
    deltas = read(reading(tools=True), [CALL[:44]], "length")
    assert joined(deltas)[2] == '{"a'
    assert deltas[-1].finish_reason == "length"


def test_a7_after_the_one_call_that_is_allowed_it_is_over() -> None:
    what = reading(tools=True, parallel=False)
    assert what.may_end
    deltas = read(what, [CALL + "\n", CALL])
    assert what.over
    assert [call.name for delta in deltas for call in delta.calls if call.id] == ["now"]
    assert deltas[-1].finish_reason == "tool_calls"


def test_only_what_may_end_early_needs_counting() -> None:
    assert not reading().may_end
    assert not reading(tools=True).may_end
    assert reading("x").may_end


@given(
    st.lists(
        st.sampled_from(
            ["a", "b", "ab", "<", "<th", "ink>", "</think>", "\n", CALL, CALL[:9], CALL[9:], "é", ""]
        )
    ),
    st.lists(st.text("ab\n<", min_size=1, max_size=3), max_size=2),
    st.booleans(),
    st.booleans(),
)
def test_a3_any_pieces_give_the_same_and_every_token_is_told_once(
    pieces: list[str], stops: list[str], thinking: bool, tools: bool
) -> None:
    deltas = read(reading(*stops, thinking=thinking, tools=tools), pieces)
    whole = read(reading(*stops, thinking=thinking, tools=tools), ["".join(pieces)])
    text, thoughts, arguments, tokens = joined(deltas)
    assert (text, thoughts, arguments) == joined(whole)[:3]
    assert deltas[-1].finish_reason == whole[-1].finish_reason
    assert not any(stop in text for stop in stops)
    assert tokens == pieces[: len(tokens)]
    if not stops:
        assert tokens == pieces
    if not thinking and not tools:
        assert "".join(tokens).startswith(text)
        assert not tokens or len("".join(tokens[:-1])) <= len(text)
