"""What the body of a response asks: items as messages, tools, forms, and every refusal with its place."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from antiphon.llm.base import Message, ToolCall
from antiphon.pipeline.errors import BadRequest
from antiphon.transport.http import validated
from antiphon.transport.responses_request import Asked, own_items, read, shorter
from antiphon.transport.responses_schema import ContextBody, CountBody, ResponsesBody

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
SQL = {"type": "custom", "name": "sql"}
Json = Mapping[str, Any]


def body(**members: Any) -> ResponsesBody:
    return validated({"model": "talker", "input": "Hi.", **members}, ResponsesBody)


def items(given: ContextBody, kept: Mapping[str, Json] | None = None) -> tuple[Json, ...]:
    numbers = iter(range(100))
    return own_items(given, lambda prefix: f"{prefix}_{next(numbers)}", (kept or {}).get)


def asked(*, before: Sequence[Json] = (), **members: Any) -> Asked:
    given = body(**members)
    return read(given, before, items(given), vocabulary=1000)


def messages(*given: Any, **members: Any) -> list[Message]:
    return list(asked(input=list(given), **members).request.messages)


def refusal(**members: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        asked(**members)
    return caught.value


# --- items ----------------------------------------------------------------------------------------------


def test_a_text_is_what_a_user_says() -> None:
    assert asked(instructions="Be brief.").request.messages == [
        Message("system", "Be brief."),
        Message("user", "Hi."),
    ]
    [item] = items(body())
    assert item == {
        "id": "msg_0",
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "Hi."}],
    }


def test_messages_of_all_roles_with_a_type_and_without() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    said = [{"type": "output_text", "text": "d", "annotations": []}, {"type": "refusal", "refusal": "e"}]
    assert messages(
        {"role": "developer", "content": "x"},
        {"type": "message", "role": "system", "content": "y"},
        {"role": "user", "content": parts},
        {"type": "message", "id": "msg_9", "role": "assistant", "status": "completed", "content": said},
        {"role": "assistant", "content": "f"},
    ) == [
        Message("system", "x"),
        Message("system", "y"),
        Message("user", "a\nb"),
        Message("assistant", "d\ne"),
        Message("assistant", "f"),
    ]


def test_calls_belong_to_the_message_before_them_and_are_answered() -> None:
    call = {"type": "function_call", "call_id": "a", "name": "weather", "arguments": '{"city": "Oslo"}'}
    custom = {"type": "custom_tool_call", "call_id": "b", "name": "sql", "input": 'say "x"'}
    outputs = [
        {"type": "function_call_output", "call_id": "a", "output": "sun"},
        {"type": "custom_tool_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "1"}]},
    ]
    thoughts = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "zzz"}
    said = {"role": "assistant", "content": "Let me look."}
    calls = (
        ToolCall("a", "weather", '{"city": "Oslo"}'),
        ToolCall("b", "sql", '{"input": "say \\"x\\""}'),
    )
    answers = [Message("tool", "sun", tool_call_id="a"), Message("tool", "1", tool_call_id="b")]
    hello = {"role": "user", "content": "Hi."}
    assert messages(hello, thoughts, said, call, custom, *outputs)[1:] == [
        Message("assistant", "Let me look.", tool_calls=calls),
        *answers,
    ]
    assert messages(hello, thoughts, call, custom, *outputs)[1:] == [
        Message("assistant", "", tool_calls=calls),
        *answers,
    ]


def test_an_output_may_answer_a_call_of_the_response_before() -> None:
    before = items(
        body(input=[{"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}"}])
    )
    own = [{"type": "function_call_output", "call_id": "a", "output": "sun"}]
    assert len(asked(input=own, before=before).request.messages) == 2
    assert refusal(input=own).param == "input[0].call_id"


def test_a_call_of_before_that_was_cut_off_is_left_out() -> None:
    before = [
        {
            "id": "1",
            "type": "function_call",
            "status": "incomplete",
            "call_id": "a",
            "name": "f",
            "arguments": "{",
        }
    ]
    assert asked(before=before).request.messages == [Message("user", "Hi.")]


def test_a_reference_is_what_it_refers_to() -> None:
    kept = {"msg_7": {"id": "msg_7", "type": "message", "role": "user", "content": "kept"}}
    given = body(input=[{"type": "item_reference", "id": "msg_7"}, {"id": "msg_7"}])
    assert items(given, kept) == (kept["msg_7"], kept["msg_7"])
    with pytest.raises(BadRequest) as caught:
        items(given)
    assert caught.value.param == "input[0].id"


def test_ids_are_kept_and_given() -> None:
    given = body(
        input=[
            {"role": "user", "content": "x", "id": "msg_mine"},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": ""},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        ]
    )
    assert [item["id"] for item in items(given)] == ["msg_mine", "fc_0", "rs_1"]


# --- what is asked --------------------------------------------------------------------------------------


def test_how_it_is_drawn_and_where_it_ends() -> None:
    request = asked(
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=16,
        include=["message.output_text.logprobs"],
        top_logprobs=3,
        seed=7,
        stop="END",
    ).request
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.seed) == (0.5, 0.9, 7)
    assert request.limits.max_tokens == 16
    assert request.limits.logprobs == 3
    assert request.limits.stop == ("END",)
    assert asked().request.sampling.temperature == 1.0
    assert asked().request.limits.logprobs is None
    assert asked(include=["message.output_text.logprobs"]).request.limits.logprobs == 0


def test_the_forms_of_the_answer() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    named = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    made = asked(text={"format": named})
    assert made.request.limits.schema == schema
    assert [(check.param, check.schema) for check in made.checks] == [("text.format.schema", schema)]
    assert asked(text={"format": {"type": "json_object"}}).request.limits.schema == {}
    assert asked(text={"format": {"type": "text"}}).request.limits.schema is None


def test_effort_and_verbosity_are_told_to_the_template() -> None:
    made = asked(reasoning={"effort": "none"}, text={"verbosity": "low"}, chat_template_kwargs={"x": 1})
    assert made.request.template == {
        "reasoning_effort": "none",
        "enable_thinking": False,
        "verbosity": "low",
        "x": 1,
    }


@pytest.mark.parametrize(
    ("choice", "mode", "name", "shown"),
    [
        (None, "auto", None, ["weather", "sql"]),
        ("none", "none", None, ["weather", "sql"]),
        ("required", "required", None, ["weather", "sql"]),
        ({"type": "function", "name": "weather"}, "required", "weather", ["weather", "sql"]),
        ({"type": "custom", "name": "sql"}, "required", "sql", ["weather", "sql"]),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "sql"}]},
            "required",
            None,
            ["sql"],
        ),
    ],
)
def test_every_tool_choice(choice: Any, mode: str, name: str | None, shown: list[str]) -> None:
    made = asked(tools=[WEATHER, SQL], tool_choice=choice, parallel_tool_calls=False)
    use = made.request.tools
    assert (use.mode, use.name, [tool.name for tool in use.tools]) == (mode, name, shown)
    assert not use.parallel
    assert made.customs == {"sql"}


def test_a_strict_tool_is_checked() -> None:
    made = asked(tools=[{**WEATHER, "strict": True}])
    assert [check.param for check in made.checks] == ["tools[0].parameters"]
    assert asked(tools=[WEATHER]).checks == ()


def test_the_count_of_tokens_is_of_the_same_prompt() -> None:
    given = validated({"input": "Hi.", "instructions": "Be brief.", "tools": [WEATHER]}, CountBody)
    counted = read(given, (), items(given), vocabulary=None).request
    whole = asked(instructions="Be brief.", tools=[WEATHER]).request
    assert (counted.messages, counted.tools) == (whole.messages, whole.tools)


# --- what is left out -----------------------------------------------------------------------------------


def test_ever_shorter_conversations_begin_with_a_turn() -> None:
    said = [
        Message("system", "s"),
        Message("user", "1"),
        Message("assistant", "", tool_calls=(ToolCall("a", "f", "{}"),)),
        Message("tool", "r", tool_call_id="a"),
        Message("user", "2"),
        Message("assistant", "x"),
        Message("user", "3"),
    ]
    assert shorter(said) == [[said[0], *said[4:]], [said[0], said[6]]]
    assert shorter(said[:4]) == []
    assert shorter(said[:1]) == []


# --- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 7}, "input"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0]"),
        ({"input": ["Hi."]}, "input[0]"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]"),
        (
            {"input": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
            "input[0].content[0].type",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}]},
            "input[0].content[0]",
        ),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "f"}]}, "input[0].arguments"),
        (
            {"input": [{"type": "function_call", "call_id": "a", "name": "f", "arguments": "["}]},
            "input[0].arguments",
        ),
        ({"input": [{"type": "function_call_output", "call_id": "a", "output": ""}]}, "input[0].call_id"),
        ({"max_output_tokens": 15}, "max_output_tokens"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"include": ["nothing"]}, "include[0]"),
        ({"truncation": "middle"}, "truncation"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"n": 2}, "n"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type"),
        ({"tools": [{"type": "teleport"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "no spaces"}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "custom", "name": "weather"}}, "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        (
            {
                "tools": [WEATHER],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [{"type": "function", "name": "x"}],
                },
            },
            "tool_choice.tools[0].name",
        ),
        (
            {"tools": [{**SQL, "format": {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}}]},
            "tools[0].format.syntax",
        ),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"logit_bias": {"1000": 1}}, "logit_bias"),
    ],
)
def test_refusals_name_the_member(members: Any, param: str) -> None:
    error = refusal(**members)
    assert error.param == param
    assert error.status == 400
    assert "Traceback" not in error.message


def test_harmless_members_are_taken() -> None:
    asked(
        moderation={"model": "x"},
        context_management=[{"type": "compaction"}],
        access_programs={"cyber": "standard"},
        image={},
        prompt_cache_options={"mode": "implicit"},
        background_options={},
        stream_options={"include_obfuscation": False},
        max_tool_calls=2,
        unheard_of=True,
    )
