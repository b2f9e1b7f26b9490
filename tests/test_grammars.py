"""The form of a reply, byte by byte: what its grammar lets through, and where it stops what it must not."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.llm.base import JsonSchema, Tool, ToolUse
from antiphon.llm.grammars import Guard, grammar
from antiphon.llm.tools import ToolParser
from antiphon.pipeline.errors import BadRequest, EngineFailed

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER, NOW = Tool("get_weather", "", CITY), Tool("get-now")
BOTH = (WEATHER, NOW)
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def tagged(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def bare(name: str, arguments: str) -> str:
    return f'```json\n{{\n  "name": "{name}",\n  "arguments": {arguments}\n}}\n```'


OSLO, PARIS = '{"city": "Oslo"}', '{"city": "Paris"}'


def stops_at(text: str, use: ToolUse, schema: JsonSchema | None = None, thoughts: Any = "none") -> int | None:
    """How much of `text` the grammar lets through; None where it is a whole reply."""
    guard = Guard(grammar(schema, use, thoughts) or "")
    for at, character in enumerate(text):
        try:
            guard.push(character)
        except EngineFailed:
            return at
    try:
        guard.finish()
    except EngineFailed:
        return len(text)
    return None


AUTO, ONE = ToolUse(BOTH), ToolUse(BOTH, parallel=False)
REQUIRED, NAMED = ToolUse(BOTH, "required"), ToolUse(BOTH, "required", name="get-now")
NONE = ToolUse(BOTH, "none")
REQUIRED_ONE = ToolUse(BOTH, "required", parallel=False)


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (AUTO, "Hello <b>there</b>."),
        (AUTO, ""),
        (AUTO, '{"name": "Oslo"}'),
        (AUTO, '```json\n{"city": "Paris"}\n```'),
        (AUTO, tagged("get_weather", OSLO)),
        (AUTO, "I look.\n" + tagged("get_weather", OSLO) + "\n" + tagged("get-now", "{}")),
        (AUTO, tagged("get-now", "{}") + " and more"),
        (AUTO, bare("get_weather", OSLO)),
        (AUTO, bare("get_weather", OSLO) + "\n" + bare("get-now", "{}")),
        (AUTO, '{"name": "get-now", "arguments": {}}'),
        (ONE, "Hello."),
        (ONE, tagged("get_weather", OSLO)),
        (ONE, bare("get_weather", OSLO)),
        (REQUIRED, tagged("get_weather", OSLO)),
        (REQUIRED, tagged("get_weather", OSLO) + "\n" + tagged("get-now", "{}")),
        (REQUIRED_ONE, tagged("get_weather", OSLO)),
        (NAMED, tagged("get-now", "{}")),
        (NONE, "Hello."),
        (NONE, bare("get_weather", PARIS)),
    ],
)
def test_a7_what_may_be_written_may_be_written(use: ToolUse, text: str) -> None:
    assert stops_at(text, use) is None


@pytest.mark.parametrize(
    ("use", "text", "kept"),
    [
        (AUTO, "Hm. " + tagged("get_weather", PARIS), '"city": "'),
        (AUTO, tagged("get_rain", OSLO), '"get_'),
        (AUTO, tagged("get-now", '{"a"'), '"arguments": {'),
        (AUTO, "See <tool_call> for more", "See <tool_call>"),
        (AUTO, bare("get_weather", PARIS), '"city": "'),
        (AUTO, bare("get_weather", OSLO) + "\n" + bare("get_weather", PARIS), '"city": "'),
        (AUTO, tagged("get-now", "{}") + "\n" + tagged("get_weather", PARIS), '"city": "'),
        (ONE, tagged("get-now", "{}") + "\n", "</tool_call>"),
        (REQUIRED, "Hello", ""),
        (REQUIRED, "", ""),
        (REQUIRED, tagged("get-now", "{}") + " so", "</tool_call>"),
        (REQUIRED_ONE, tagged("get-now", "{}") + "\n", "</tool_call>"),
        (NAMED, tagged("get_weather", OSLO), '"get'),
        (NONE, "a <tool_call>", "a <tool_call"),
    ],
)
def test_a7_what_may_not_be_written_is_stopped(use: ToolUse, text: str, kept: str) -> None:
    at = stops_at(text, use)
    assert at is not None
    assert text[:at].endswith(kept)


def test_a_schema_beside_tools_is_another_way_to_answer() -> None:
    assert stops_at('{"n": 1}', AUTO, NUMBER) is None
    assert stops_at(tagged("get_weather", OSLO), AUTO, NUMBER) is None
    assert stops_at("Hello", AUTO, NUMBER) == 0
    assert stops_at('{"n": 1}', REQUIRED, NUMBER) == 0
    assert stops_at('{"n": 1}', NONE, NUMBER) is None


@pytest.mark.parametrize("schema", [NUMBER, None])
def test_a14_the_form_begins_after_the_thoughts(schema: Any) -> None:
    reply = '{"n": 1}' if schema else tagged("get_weather", OSLO)
    wrong = "x" if schema else tagged("get_weather", PARIS)
    for use in (AUTO, NONE) if schema else (AUTO, REQUIRED):
        for thoughts, before in (
            ("begun", "Hm, { \n</think>\n\n"),
            ("possible", "<think>\n{Hm. <tool_call> \n</think>"),
            ("possible", ""),
        ):
            assert stops_at(before + reply, use, schema, thoughts) is None
            at = stops_at(before + wrong, use, schema, thoughts)
            assert at is not None
            assert at >= len(before)
    assert stops_at("begun thoughts", ToolUse(), NUMBER, "begun") == len("begun thoughts"), "not whole"


def test_free_text_has_no_grammar() -> None:
    assert grammar(None, ToolUse()) is None


def test_a13_parameters_that_cannot_be_held_to_are_refused_where_the_tool_must_be_called() -> None:
    odd = Tool("odd", "", {"type": "object", "properties": {"a": {"not": {}}}})
    with pytest.raises(BadRequest, match=r"tool 'odd'.*'not'") as raised:
        grammar(None, ToolUse((odd,), "required"))
    assert raised.value.param == "tools"
    assert stops_at(tagged("odd", '{"a": [1]}'), ToolUse((odd,))) is None, "a hint, where it need not be"
    assert stops_at(tagged("odd", "3"), ToolUse((odd,))) is not None
    grammar(None, ToolUse((odd, NOW), "required", name="get-now"))


def test_arguments_are_an_object() -> None:
    with pytest.raises(BadRequest, match="'odd'") as raised:
        grammar(None, ToolUse((Tool("odd", "", {"type": "string"}),)))
    assert raised.value.param == "tools"


def test_what_a_schema_says_is_not_read_as_a_rule() -> None:
    sly = Tool(
        "sly", "", {"type": "object", "properties": {"start: reply: thoughts:": {"const": "start: x"}}}
    )
    text = tagged("sly", '{"start: reply: thoughts:": "start: x"}')
    for thoughts in ("none", "possible"):
        assert stops_at(text, ToolUse((sly,)), thoughts=thoughts) is None


def test_a_tool_that_is_not_there_cannot_be_required() -> None:
    with pytest.raises(BadRequest, match="'other'") as raised:
        grammar(None, ToolUse(BOTH, "required", name="other"))
    assert raised.value.param == "tool_choice"


@pytest.mark.parametrize(
    "name", ["a/b", 'say "hi"', "back\\slash", "größe", "a.b*", "</tool_call>", "a-b_C9"]
)
def test_any_name_is_only_itself(name: str) -> None:
    import json

    use = ToolUse((Tool(name),))
    for text in (tagged("X", "{}"), bare("X", "{}")):
        text = text.replace('"X"', json.dumps(name, ensure_ascii=False))
        assert stops_at(text, use) is None
        parser = ToolParser([name], new_id=lambda: "id")
        calls = [piece.call for piece in [*parser.push(text), *parser.finish()] if piece.call]
        assert calls[0].name == name
    assert stops_at(tagged("axb", "{}"), use) is not None


def test_many_tools_are_compiled() -> None:
    tools = tuple(Tool(f"tool_{number}", "", CITY) for number in range(128))
    assert stops_at(tagged("tool_127", OSLO), ToolUse(tools)) is None
    assert stops_at(bare("tool_64", PARIS), ToolUse(tools)) is not None
