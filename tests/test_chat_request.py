"""What bodies of chat completions ask for, and what is refused by which name."""

from typing import Any

import pytest

from antiphon.llm.base import Message, Tool, ToolCall, ToolUse
from antiphon.pipeline.errors import BadRequest
from antiphon.transport.chat_request import Asked, Sound, read, sounds
from antiphon.transport.chat_schema import ChatBody
from antiphon.transport.http import validated

USER = {"role": "user", "content": "Hi."}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "The time."}}
SQL = {"type": "custom", "custom": {"name": "sql", "description": "Runs it."}}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}}


def asked(heard: dict[str, str] | None = None, **members: Any) -> Asked:
    body = validated({"model": "m", "messages": [USER], **members}, ChatBody)
    recalled = {"audio_1": "I said so."}.get
    return read(body, vocabulary=100, heard=heard or {}, recalled=recalled)


def messages(*said: dict[str, Any]) -> list[Message]:
    return list(asked(messages=list(said)).request.messages)


def param(**members: Any) -> str | None:
    with pytest.raises(BadRequest) as caught:
        asked(**members)
    assert caught.value.message
    return caught.value.param


# --- messages -------------------------------------------------------------------------------------------


def test_the_plainest_request() -> None:
    found = asked()
    assert list(found.request.messages) == [Message("user", "Hi.")]
    assert found.request.limits.max_tokens is None
    assert found.request.sampling.temperature == 1.0
    assert found.request.tools == ToolUse()
    assert (found.n, found.stream, found.usage, found.logprobs, found.legacy) == (
        1,
        False,
        False,
        False,
        False,
    )
    assert found.speech is None
    assert found.checks == ()


def test_roles_and_names() -> None:
    assert messages(
        {"role": "developer", "content": "Be brief."},
        {"role": "system", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "kind."}]},
        {"role": "user", "content": "Hi.", "name": "Ada"},
        {"role": "assistant", "content": [{"type": "text", "text": "Hello."}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "assistant", "content": None, "refusal": "Never."},
    ) == [
        Message("system", "Be brief."),
        Message("system", "Be\nkind."),
        Message("user", "Hi.", "Ada"),
        Message("assistant", "Hello."),
        Message("assistant", "No."),
        Message("assistant", "Never."),
    ]


def test_calls_and_their_answers() -> None:
    custom = {"id": "c2", "type": "custom", "custom": {"name": "sql", "input": 'SELECT "ü"'}}
    found = messages(
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL, custom]},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "1"}]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    )
    calls = (
        ToolCall("c1", "weather", '{"city": "Oslo"}'),
        ToolCall("c2", "sql", '{"input": "SELECT \\"ü\\""}'),
    )
    assert found[1:] == [
        Message("assistant", "", None, calls),
        Message("tool", "1", tool_call_id="c2"),
        Message("tool", "rain", tool_call_id="c1"),
    ]


def test_deprecated_function_messages() -> None:
    found = messages(
        USER,
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": None},
    )
    assert found[1].tool_calls == (ToolCall("function_1", "f", "{}"),)
    assert found[2] == Message("tool", "", "f", tool_call_id="function_1")


def test_sound_is_its_text_in_place() -> None:
    content = [{"type": "text", "text": "Listen:"}, AUDIO, AUDIO]
    body = validated({"model": "m", "messages": [USER, {"role": "user", "content": content}]}, ChatBody)
    places = ["messages[1].content[1]", "messages[1].content[2]"]
    assert sounds(body) == [Sound(place, "UklG") for place in places]
    found = read(body, vocabulary=None, heard={places[0]: "one", places[1]: "two"}, recalled=lambda id: None)
    assert found.request.messages[1].content == "Listen:\none\ntwo"


def test_what_was_spoken_is_recalled_by_its_id() -> None:
    assert messages({"role": "assistant", "audio": {"id": "audio_1"}})[0].content == "I said so."
    said = {"role": "assistant", "audio": {"id": "gone"}, "content": "It was this."}
    assert messages(said)[0].content == "It was this."


BROKEN: list[tuple[Any, str]] = [
    ([], "messages"),
    (["Hi."], "messages[0]"),
    ([{"role": "wizard", "content": "x"}], "messages[0].role"),
    ([{"content": "x"}], "messages[0].role"),
    ([USER, {"role": "user"}], "messages[1].content"),
    ([{"role": "user", "content": None}], "messages[0].content"),
    ([{"role": "user", "content": []}], "messages[0].content"),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
    ([{"role": "user", "content": [{"type": "smell", "smell": "x"}]}], "messages[0].content[0].type"),
    (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        "messages[0].content[0]",
    ),
    ([{"role": "user", "content": [{"type": "file", "file": {"file_id": "x"}}]}], "messages[0].content[0]"),
    (
        [
            {
                "role": "user",
                "content": [{"type": "input_audio", "input_audio": {"data": "x", "format": "ogg"}}],
            }
        ],
        "messages[0].content[0].input_audio.format",
    ),
    ([{"role": "assistant", "content": None}], "messages[0].content"),
    ([{"role": "assistant", "audio": {"id": "gone"}}], "messages[0].audio.id"),
    ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
    ([{"role": "tool", "content": "x", "tool_call_id": "c1"}], "messages[0].tool_call_id"),
    ([{"role": "function", "content": "x", "name": "f"}], "messages[0].name"),
    (
        [{"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "[]"}}]}],
        "messages[0].tool_calls[0].function.arguments",
    ),
    (
        [{"role": "assistant", "function_call": {"name": "f", "arguments": "{"}}],
        "messages[0].function_call.arguments",
    ),
    ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls"),
    ([{"role": "assistant", "tool_calls": [{"id": "c"}]}], "messages[0].tool_calls[0].type"),
]


@pytest.mark.parametrize(("said", "place"), BROKEN)
def test_what_is_wrong_with_a_message_is_named_by_its_path(said: Any, place: str) -> None:
    assert param(messages=said) == place


# --- tools ----------------------------------------------------------------------------------------------


def test_tools_are_the_models_choice_unless_it_is_told() -> None:
    tools = (Tool("weather", "", {"type": "object"}), Tool("clock", "The time.", {}))
    both = {"tools": [WEATHER, CLOCK]}
    assert asked(**both).request.tools == ToolUse(tools, "auto")
    for mode in ("none", "auto", "required"):
        assert asked(**both, tool_choice=mode).request.tools == ToolUse(tools, mode)
    named = {"type": "function", "function": {"name": "clock"}}
    assert asked(**both, tool_choice=named).request.tools == ToolUse(tools, "required", "clock")
    assert not asked(**both, parallel_tool_calls=False).request.tools.parallel
    allowed = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "clock"}}]},
    }
    assert asked(**both, tool_choice=allowed).request.tools == ToolUse(tools[1:], "required")


def test_without_tools_none_is_called() -> None:
    for choice in (None, "none", "auto"):
        assert asked(tools=[], tool_choice=choice).request.tools == ToolUse()
    assert param(tool_choice="required") == "tool_choice"


def test_a_custom_tool_is_a_function_of_one_text() -> None:
    found = asked(tools=[SQL, CLOCK], tool_choice={"type": "custom", "custom": {"name": "sql"}})
    assert found.customs == {"sql"}
    assert found.request.tools.name == "sql"
    tool = found.request.tools.tools[0]
    assert tool.description == "Runs it."
    assert tool.parameters["properties"] == {"input": {"type": "string"}}
    assert tool.parameters["required"] == ["input"]


def test_a_custom_tools_grammar_is_a_pattern() -> None:
    form = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a|b"}}
    found = asked(tools=[{"type": "custom", "custom": {"name": "sql", "format": form}}])
    assert found.request.tools.tools[0].parameters["properties"]["input"]["pattern"] == "^(?:a|b)$"
    assert [check.param for check in found.checks] == ["tools[0].custom.format.grammar.definition"]
    form["grammar"]["syntax"] = "lark"
    tools = [{"type": "custom", "custom": {"name": "sql", "format": form}}]
    assert param(tools=tools) == "tools[0].custom.format.grammar.syntax"


def test_deprecated_functions() -> None:
    function = {"name": "f", "parameters": {"type": "object"}}
    found = asked(functions=[function])
    assert found.legacy
    assert found.request.tools == ToolUse((Tool("f", "", {"type": "object"}),), "auto", parallel=False)
    assert asked(functions=[function], function_call="none").request.tools.mode == "none"
    assert asked(functions=[function], function_call={"name": "f"}).request.tools.name == "f"
    assert param(functions=[function], function_call={"name": "g"}) == "function_call.name"
    assert param(functions=[function], tools=[CLOCK]) == "functions"


def test_strict_parameters_are_checked_whether_or_not_they_are_used() -> None:
    function = {"name": "f", "parameters": {"properties": {}}, "strict": True}
    found = asked(tools=[CLOCK, {"type": "function", "function": function}])
    assert [(check.param, check.schema) for check in found.checks] == [
        ("tools[1].function.parameters", {"type": "object", "properties": {}})
    ]


@pytest.mark.parametrize(
    ("members", "place"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [CLOCK] * 129}, "tools"),
        ({"tools": [CLOCK], "tool_choice": "sometimes"}, "tool_choice"),
        (
            {"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice.function.name",
        ),
        (
            {"tools": [CLOCK], "tool_choice": {"type": "custom", "custom": {"name": "clock"}}},
            "tool_choice.custom.name",
        ),
        ({"tools": [CLOCK], "tool_choice": {"type": "mcp"}}, "tool_choice.type"),
    ],
)
def test_what_is_wrong_with_tools(members: Any, place: str) -> None:
    assert param(**members) == place


# --- the form and the limits ----------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("members", "schema", "form"),
    [
        ({}, None, "response_format"),
        ({"response_format": {"type": "text"}}, None, "response_format"),
        ({"response_format": {"type": "json_object"}}, {}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            SCHEMA,
            "response_format",
        ),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, {}, "response_format"),
        ({"guided_json": SCHEMA}, SCHEMA, "guided_json"),
        ({"guided_json": '{"type": "object"}'}, {"type": "object"}, "guided_json"),
        ({"structured_outputs": {"json": SCHEMA}}, SCHEMA, "structured_outputs.json"),
        ({"structured_outputs": {"json_object": True}}, {}, "structured_outputs.json_object"),
    ],
)
def test_the_form_of_the_answer(members: Any, schema: Any, form: str) -> None:
    found = asked(**members)
    assert (found.request.limits.schema, found.form) == (schema, form)


@pytest.mark.parametrize(
    ("members", "place"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.name"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a" * 65, "schema": {}}}},
            "response_format.json_schema.name",
        ),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"guided_choice": ["a"]}, "guided_choice"),
        ({"guided_grammar": "x"}, "guided_grammar"),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs.choice"),
        ({"guided_json": {}, "response_format": {"type": "json_object"}}, "guided_json"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"top_logprobs": 1, "logprobs": False}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"modalities": ["text", "audio"]}, "audio"),
        ({"modalities": ["video"]}, "modalities[0]"),
        ({"modalities": ["audio"], "audio": {"voice": "x", "format": "mod"}}, "audio.format"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"stream_options": {}}, "stream_options"),
    ],
)
def test_what_is_wrong_with_the_rest(members: Any, place: str) -> None:
    assert param(**members) == place


def test_limits() -> None:
    limits = asked(max_tokens=5, max_completion_tokens=7, stop="x", logprobs=True).request.limits
    assert (limits.max_tokens, limits.stop, limits.logprobs) == (7, ("x",), 0)
    assert asked(max_tokens=5).request.limits.max_tokens == 5
    assert asked(logprobs=True, top_logprobs=3).request.limits.logprobs == 3


def test_what_a_template_is_told() -> None:
    assert asked(reasoning_effort="none").request.template == {
        "reasoning_effort": "none",
        "enable_thinking": False,
    }
    found = asked(reasoning_effort="low", verbosity="high", chat_template_kwargs={"reasoning_effort": "x"})
    assert found.request.template == {"reasoning_effort": "x", "verbosity": "high"}


def test_what_others_know_is_taken_and_changes_nothing() -> None:
    more = {
        "store": True, "prediction": {"type": "content", "content": "x"}, "safety_identifier": "x", "user": "u",
        "prompt_cache_key": "x", "prompt_cache_retention": "24h", "moderation": {}, "best_of": 3, "echo": False,
        "service_tier": "auto", "metadata": {"a": "b"}, "anything": [1],
    }  # fmt: skip
    assert asked(**more) == asked()
