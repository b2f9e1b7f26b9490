"""Calls in a reply: dense, whole, apart from the text, and the same in any pieces."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.llm.tools import ToolParser

NAMES = ("get_weather", "get_weather_at", "now")


@dataclass
class Read:
    text: str = ""
    calls: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    size: int = 0


def run(pieces: Sequence[str], *, finish: bool = True, bare: bool = True, parallel: bool = True) -> Read:
    """What comes out; checks on the way what A5 asks of the deltas."""
    numbers = itertools.count()
    parser = ToolParser(NAMES, new_id=lambda: f"call_{next(numbers)}", bare=bare, parallel=parallel)
    read = Read()
    for piece in [*(p for text in pieces for p in parser.push(text)), *(parser.finish() if finish else [])]:
        assert piece.size == len(piece.text) or not piece.text
        read.size += piece.size
        read.text += piece.text
        if (call := piece.call) is None:
            continue
        assert not piece.text
        if call.id:
            assert call.index == len(read.calls)
            assert call.name in NAMES
            read.calls.append((call.id, call.name, call.arguments))
        else:
            assert call.name == ""
            id, name, arguments = read.calls[call.index]
            assert call.index == len(read.calls) - 1
            read.calls[call.index] = (id, name, arguments + call.arguments)
    return read


def tagged(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


OSLO = '{"city": "Oslo"}'
ODD = '{"a": "}] \\" \\\\", "b": [{"c": {}}, "</tool_call>"], "é": "👩‍👩‍👧"}'


@pytest.mark.parametrize(
    ("reply", "text", "calls"),
    [
        (tagged("get_weather", OSLO), "", [("get_weather", OSLO)]),
        ("I look.\n" + tagged("now", "{}"), "I look.\n", [("now", "{}")]),
        (
            tagged("now", ODD) + "\n" + tagged("get_weather_at", OSLO),
            "",
            [("now", ODD), ("get_weather_at", OSLO)],
        ),
        (tagged("now", "{}") + " \n Done.", "Done.", [("now", "{}")]),
        ('<tool_call>{"name":"now","arguments":{}}</tool_call>', "", [("now", "{}")]),
        (
            '<tool_call>\n{"name": "now", "arguments": {}, "id": {"x": "}"}}\n</tool_call>',
            "",
            [("now", "{}")],
        ),
        (
            f'```json\n{{\n  "name": "get_weather",\n  "arguments": {OSLO}\n}}\n```',
            "",
            [("get_weather", OSLO)],
        ),
        (f'{{"name": "get_weather", "parameters": {OSLO}}}', "", [("get_weather", OSLO)]),
        ('```\n{"name": "now", "arguments": {}}\n``` \nSo.', "So.", [("now", "{}")]),
        (
            '```json\n{"name": "now", "arguments": {}}\n```\n'
            '```json\n{"name": "now", "arguments": {"a": 1}}\n```',
            "",
            [("now", "{}"), ("now", '{"a": 1}')],
        ),
        (
            '```json\n{"name": "now", "arguments": {}}\n```json\n{"name": "now", "arguments": {}}\n```',
            "",
            [("now", "{}"), ("now", "{}")],
        ),
    ],
)
def test_a5_calls_are_found_whole_and_apart_from_the_text(
    reply: str, text: str, calls: list[tuple[str, str]]
) -> None:
    for pieces in ([reply], list(reply)):
        read = run(pieces)
        assert read.text == text
        assert [(name, arguments) for _, name, arguments in read.calls] == calls
        assert len({id for id, _, _ in read.calls}) == len(calls)
        for _, _, arguments in read.calls:
            json.loads(arguments)
        assert read.size == len(reply)


@pytest.mark.parametrize(
    "text",
    [
        "Hello.",
        "",
        " \n ",
        "a < b <tool",
        '{"name": "Oslo", "arguments": {}}',
        '{"name": "now"}',
        '{"names": ["now"]}',
        '```json\n{"city": "Oslo"}\n```',
        "```python\nprint()\n```",
        '{"name": "now", "arguments": []}',
        '{"name": "get_weather_',
        "```json",
        'As JSON: {"name": "now", "arguments": {}}',
        "<tool_call>or not</tool_call>",
        '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>',
    ],
)
def test_what_turns_out_to_be_no_call_is_text_unchanged(text: str) -> None:
    for pieces in ([text], list(text)):
        read = run(pieces)
        assert (read.text, read.calls, read.size) == (text, [], len(text))


def test_json_alone_is_text_where_it_was_asked_for() -> None:
    reply = '{"name": "now", "arguments": {}}'
    assert run(list(reply), bare=False).text == reply


def test_a8_what_cannot_be_a_call_is_let_out_at_once() -> None:
    parser = ToolParser(NAMES, new_id=lambda: "x")
    for piece in ("Hello", " a", " {", ' "name"', " <b>"):
        (out,) = parser.push(piece)
        assert out.text == piece
    assert parser.push(" <") != parser.push("tool") == []
    (out,) = parser.push("s")
    assert out.text == "<tools"


def test_arguments_are_streamed_as_they_come() -> None:
    whole = tagged("now", '{"text": "a long one"}')
    pieces = [whole[: whole.index(" long")], " lon"]
    assert run(pieces[:1], finish=False).calls == [("call_0", "now", '{"text": "a')]
    assert run(pieces, finish=False).calls == [("call_0", "now", '{"text": "a lon')]


@pytest.mark.parametrize("size", range(len(tagged("get_weather", OSLO)) + 1))
def test_a6_cut_anywhere_it_gives_what_is_certain_and_no_markup(size: int) -> None:
    reply = tagged("get_weather", OSLO)[:size]
    for pieces in ([reply], list(reply)):
        read = run(pieces)
        assert read.size == size
        if read.calls:
            assert read.text == ""
            assert OSLO.startswith(read.calls[0][2])
        elif size >= len("<tool_call>"):
            assert read.text == "", "a call had begun"
        else:
            assert read.text == reply, "which may have become anything"


@pytest.mark.parametrize(
    ("reply", "text", "calls"),
    [
        ('{"name": "now", "arg', "", 0),
        ('```json\n{"name": "now"', "", 0),
        ('{"name": "no', '{"name": "no', 0),
        ('{"name": "now", "arguments": {}}\n```json\n{"na', "", 1),
        ('{"name": "now", "arguments": {}} ', "", 1),
    ],
)
def test_a6_a_bare_call_that_is_cut_is_no_text_once_it_has_a_name(reply: str, text: str, calls: int) -> None:
    for pieces in ([reply], list(reply)):
        read = run(pieces)
        assert (read.text, len(read.calls), read.size) == (text, calls, len(reply))


def test_a7_no_more_than_one_call_where_one_is_allowed() -> None:
    reply = tagged("now", "{}") + "\n" + tagged("now", "{}") + " and so on"
    for pieces in ([reply], list(reply)):
        read = run(pieces, parallel=False)
        assert (read.text, [name for _, name, _ in read.calls]) == ("", ["now"])
    parser = ToolParser(NAMES, new_id=lambda: "x", parallel=False)
    parser.push(tagged("now", "{}"))
    assert parser.full


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
json_objects = st.dictionaries(st.text(max_size=3), json_values)


@given(
    st.lists(
        st.one_of(
            st.text("ab<{}`\n", max_size=8),
            st.builds(
                tagged,
                st.sampled_from(NAMES),
                st.dictionaries(st.text(max_size=3), json_values).map(json.dumps),
            ),
        ),
        max_size=4,
    ),
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
def test_any_pieces_of_a_reply_give_the_same(parts: list[str], sizes: list[int]) -> None:
    reply = "".join(parts)
    pieces: list[str] = []
    rest = reply
    for size in itertools.cycle(sizes):
        if not rest:
            break
        pieces.append(rest[:size])
        rest = rest[size:]
    read = run(pieces)
    assert read == run([reply])
    assert read.size == len(reply)
    assert len(read.calls) == sum(part.startswith("<tool_call>") for part in parts)
    for _, _, arguments in read.calls:
        json.loads(arguments)
