"""A response's events and its object, of deltas as models give them; each event is one of the SDK's."""

from collections.abc import Sequence
from typing import Any

import pytest
from asking import token, words
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from antiphon.llm.base import CallDelta, Delta
from antiphon.pipeline.errors import BadRequest, EngineFailed, Overloaded
from antiphon.pipeline.events import Usage
from antiphon.transport.responses_encoder import ResponseEncoder, error_event, opening
from antiphon.transport.responses_schema import ResponsesBody

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
SCHEMA = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}
DONE = Delta("", "stop", Usage(10, 4, 3))
CALLED = Delta("", "tool_calls", Usage(10, 0, 9))

_REQUIRED = """
    id object created_at completed_at status incomplete_details model previous_response_id instructions output
    error tools tool_choice truncation parallel_tool_calls text top_p presence_penalty frequency_penalty
    top_logprobs temperature reasoning user usage max_output_tokens max_tool_calls store background service_tier
    metadata safety_identifier prompt_cache_key
"""
OPEN_RESPONSES = frozenset(_REQUIRED.split())
"""The members that the Open Responses specification requires of a response."""


def body(**members: Any) -> ResponsesBody:
    return ResponsesBody.model_validate({"model": "talker", "input": "Hi.", **members})


def encoder(
    customs: frozenset[str] = frozenset(), *, logprobs: bool = False, **members: Any
) -> ResponseEncoder:
    numbers = iter(range(1000))
    return ResponseEncoder(
        opening(body(**members), "resp_1", 1000),
        new_id=lambda prefix: f"{prefix}_{next(numbers)}",
        customs=customs,
        logprobs=logprobs,
    )


def run(made: ResponseEncoder, deltas: Sequence[Delta], *, reasoning: int = 0) -> list[dict[str, Any]]:
    """All events, checked: they are the SDK's, numbered, of one response, and what they tell is its object."""
    events = made.begin()
    for delta in deltas:
        events += made.push(delta)
    events += made.finish(1002.5, reasoning=reasoning)
    check(events)
    assert events[-1]["response"] == made.document
    return events


def check(events: Sequence[dict[str, Any]]) -> None:
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert {event["response"]["id"] for event in events if "response" in event} == {"resp_1"}
    for event in events:
        validated = EVENT.validate_python(event, strict=False)
        assert validated.type == event["type"]
        assert type(validated).__name__ != "dict"


def kinds(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def deltas_of(events: Sequence[dict[str, Any]], kind: str) -> str:
    return "".join(event["delta"] for event in events if event["type"] == f"response.{kind}.delta")


def test_a19_text_in_its_order() -> None:
    events = run(encoder(), [Delta("Hi"), Delta(" there."), DONE])
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert events[0]["response"]["output"] == []
    assert events[2]["item"]["content"] == []
    assert all(event["logprobs"] == [] for event in events[4:7])
    last = events[-1]["response"]
    assert last["status"] == "completed"
    assert last["completed_at"] == 1002
    [item] = last["output"]
    assert item == events[-2]["item"]
    assert item["content"][0]["text"] == "Hi there." == events[6]["text"]
    assert last["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 13,
    }


def test_a19_a_response_cut_off_is_incomplete() -> None:
    events = run(encoder(), [Delta("Hi"), Delta("", "length", Usage(5, 0, 16))])
    last = events[-1]["response"]
    assert events[-1]["type"] == "response.incomplete"
    assert last["status"] == "incomplete"
    assert last["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["completed_at"] is None
    assert last["output"][0]["status"] == "incomplete"


def test_a19_calls_one_after_the_other() -> None:
    deltas = [
        Delta("", calls=(CallDelta(0, "call_a", "weather"),)),
        Delta("", calls=(CallDelta(0, arguments='{"city":'),)),
        Delta("", calls=(CallDelta(0, arguments=' "Oslo"}'), CallDelta(1, "call_b", "time", "{}"))),
        CALLED,
    ]
    events = run(encoder(), deltas)
    assert kinds(events)[2:-1] == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    assert events[2]["item"]["arguments"] == ""
    first, second = events[-1]["response"]["output"]
    assert (first["name"], first["call_id"], first["arguments"]) == ("weather", "call_a", '{"city": "Oslo"}')
    assert (second["name"], second["call_id"], second["arguments"]) == ("time", "call_b", "{}")
    assert first["id"] != first["call_id"]
    assert [event["output_index"] for event in events if event["type"].endswith("item.added")] == [0, 1]


def test_a_call_cut_off_keeps_what_there_was() -> None:
    deltas = [Delta("", calls=(CallDelta(0, "call_a", "f", '{"a": "b'),)), Delta("", "length", Usage())]
    events = run(encoder(), deltas)
    [item] = events[-1]["response"]["output"]
    assert (item["status"], item["arguments"]) == ("incomplete", '{"a": "b')


def test_a19_thoughts_are_an_item_before_the_text() -> None:
    deltas = [
        Delta("", reasoning="Let me"),
        Delta("", reasoning=" see."),
        Delta("Yes.", calls=(CallDelta(0, "c", "f", "{}"),)),
        Delta("", "tool_calls", Usage(5, 0, 9)),
    ]
    events = run(encoder(), deltas, reasoning=4)
    assert kinds(events)[2:9] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
    ]
    last = events[-1]["response"]
    assert [item["type"] for item in last["output"]] == ["reasoning", "message", "function_call"]
    assert last["output"][0]["content"] == [{"type": "reasoning_text", "text": "Let me see."}]
    assert last["usage"]["output_tokens_details"] == {"reasoning_tokens": 4}
    assert deltas_of(events, "reasoning_text") == "Let me see."
    assert deltas_of(events, "output_text") == "Yes."


def test_nothing_said_is_an_empty_message_unless_it_was_cut() -> None:
    [item] = run(encoder(), [DONE])[-1]["response"]["output"]
    assert item["content"][0]["text"] == ""
    events = run(encoder(), [Delta("", reasoning="Hm"), Delta("", "length", Usage())])
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning"]
    events = run(encoder(), [Delta("", reasoning="Hm"), DONE])
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning", "message"]


def test_a_custom_tool_gets_its_text() -> None:
    deltas = [
        Delta("", calls=(CallDelta(0, "call_a", "sql"),)),
        Delta("", calls=(CallDelta(0, arguments='{"input": "sel'),)),
        Delta("", calls=(CallDelta(0, arguments='ect \\"x\\""}'),)),
        CALLED,
    ]
    events = run(encoder(frozenset({"sql"})), deltas)
    [item] = events[-1]["response"]["output"]
    assert (item["type"], item["input"]) == ("custom_tool_call", 'select "x"')
    assert deltas_of(events, "custom_tool_call_input") == 'select "x"'


def test_log_probabilities_are_of_the_text_alone() -> None:
    deltas = [
        Delta("", reasoning="Hm", logprobs=(token("Hm"),)),
        Delta("Y", reasoning=".", logprobs=(token("."), token("</think>"), token("Y"))),
        Delta("es", logprobs=(token("es", -0.1, ("es", -0.1), ("ep", -3.0)),)),
        Delta("!", calls=(CallDelta(0, "c", "f", "{}"),), logprobs=(token("!"), token("<tool_call>"))),
        Delta("", "tool_calls", Usage(), logprobs=(token("<|im_end|>"),)),
    ]
    events = run(encoder(logprobs=True), deltas)
    text = events[-1]["response"]["output"][1]["content"][0]
    assert [entry["token"] for entry in text["logprobs"]] == ["Y", "es", "!"]
    assert b"".join(bytes(entry["bytes"]) for entry in text["logprobs"]).decode() == text["text"] == "Yes!"
    assert [len(entry["top_logprobs"]) for entry in text["logprobs"]] == [0, 2, 0]
    pieces = [event for event in events if event["type"] == "response.output_text.delta"]
    told = [entry for event in pieces for entry in event["logprobs"]]
    assert told == text["logprobs"]
    assert run(encoder(), deltas)[-1]["response"]["output"][1]["content"][0]["logprobs"] == []


def test_the_object_has_what_the_sdk_and_open_responses_require() -> None:
    asked = {
        "instructions": "Be brief.",
        "tools": [
            {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True},
            {
                "type": "custom",
                "name": "c",
                "format": {"type": "grammar", "syntax": "regex", "definition": "a"},
            },
        ],
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "function", "name": "f"}],
        },
        "text": {
            "format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}},
            "verbosity": "low",
        },
        "reasoning": {"effort": "low", "generate_summary": "auto"},
        "metadata": {"a": "b"},
        "service_tier": "flex",
        "prompt_cache_retention": "24h",
        "max_tool_calls": 3,
        "user": "me",
    }
    for members in ({}, asked):
        for document in (encoder(**members).document, run(encoder(**members), words("Hi."))[-1]["response"]):
            assert set(document) >= OPEN_RESPONSES
            read = Response.model_validate(document, strict=False)
            assert read.created_at == 1000
    document = encoder(**asked).document
    assert document["reasoning"] == {"effort": "low", "summary": "auto"}
    assert document["text"]["format"]["schema"] == {"type": "object"}
    assert document["tool_choice"]["tools"] == [{"type": "function", "name": "f"}]
    assert document["service_tier"] == "flex"
    assert encoder(service_tier="auto").document["service_tier"] == "default"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineFailed("broken"), "server_error"),
        (Overloaded("full"), "rate_limit_exceeded"),
        (BadRequest("too long"), "invalid_prompt"),
    ],
)
def test_an_error_in_the_middle(error: Any, code: str) -> None:
    made = encoder()
    events = [*made.begin(), *made.push(Delta("Hi")), *made.fail(error)]
    check(events)
    assert kinds(events)[-5:] == [
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "error",
        "failed",
    ]
    assert events[-2]["message"] == error.message
    last = events[-1]["response"]
    assert (last["status"], last["error"]) == ("failed", {"code": code, "message": error.message})
    assert last["output"][0]["status"] == "incomplete"
    assert error_event(error, made.events)["sequence_number"] == len(events)


def test_one_that_waits_and_is_cancelled() -> None:
    made = encoder(background=True)
    events = made.queue()
    assert [event["response"]["status"] for event in events] == ["queued", "queued"]
    events += [*made.begin(), *made.push(Delta("Hi")), *made.cancel()]
    check(events)
    assert kinds(events)[:3] == ["created", "queued", "in_progress"]
    assert (events[-1]["type"], events[-1]["code"]) == ("error", "response_cancelled")
    assert made.document["status"] == "cancelled"


def test_what_was_told_does_not_change_later() -> None:
    made = encoder()
    created, begun = made.begin()
    made.push(Delta("Hi"))
    made.push(DONE)
    made.finish(1002.5)
    assert created["response"]["status"] == begun["response"]["status"] == "in_progress"
    assert created["response"]["output"] == []
