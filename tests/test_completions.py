"""POST /v1/completions: what bodies ask for, how answers look, and the endpoint below the server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from asking import Answer, ScriptedModel, ask, services, token, words
from fakes import fake_engines
from openai.types import Completion

from antiphon.llm.base import Delta, TextRequest, TokenLogprob
from antiphon.pipeline.errors import BadRequest, EngineFailed
from antiphon.pipeline.events import Usage
from antiphon.transport.completion_encoder import CompletionWhole, Head, Legacy
from antiphon.transport.completion_schema import Asked, CompletionBody, read
from antiphon.transport.completions import endpoints
from antiphon.transport.http import Endpoint, validated

BODY = {"model": "talker", "prompt": "One, two,"}


def understood(**members: Any) -> Asked:
    return read(validated({**BODY, **members}, CompletionBody), vocabulary=100)


@asynccontextmanager
async def served(model: ScriptedModel | None) -> AsyncIterator[Endpoint]:
    async with fake_engines(chat=model) as engines:
        [endpoint] = endpoints(services(replace(engines, text=model)))
        yield endpoint


async def asked(model: ScriptedModel | None, /, **members: Any) -> Answer:
    async with served(model) as endpoint:
        return await ask(endpoint, {**BODY, **members})


# --- requests -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ("a",)), ("", ("",)), (None, ("",)), (["a", "b"], ("a", "b")), ([1, 2], ([1, 2],)),
        ([[1], [2, 3]], ([1], [2, 3])),
    ],
)  # fmt: skip
def test_prompts(prompt: Any, prompts: tuple[Any, ...]) -> None:
    assert understood(prompt=prompt).prompts == prompts
    assert tuple(request.prompt for request in understood(prompt=prompt).requests) == prompts


def test_sixteen_tokens_unless_more_are_asked_for() -> None:
    assert understood().requests[0].limits.max_tokens == 16
    assert understood(max_tokens=99).requests[0].limits.max_tokens == 99


def test_every_choice_of_every_prompt_is_a_request() -> None:
    found = understood(prompt=["a", "b"], n=2, best_of=3, seed=5)
    assert [request.prompt for request in found.requests] == ["a"] * 3 + ["b"] * 3
    assert [request.sampling.seed for request in found.requests] == [5, 6, 7] * 2
    assert found.requests[0].limits.logprobs == 0, "the best are chosen by them"
    assert understood(best_of=0, n=2).best_of == 2


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"prompt": []}, "prompt"), ({"prompt": [[]]}, "prompt[0]"), ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [100]}, "prompt"), ({"prompt": [[1], [100]]}, "prompt"), ({"prompt": 1}, "prompt"),
        ({"prompt": ["a"] * 1000, "n": 3}, "prompt"), ({"suffix": "end"}, "suffix"),
        ({"echo": True, "logprobs": 1}, "echo"), ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"), ({"best_of": 21}, "best_of"), ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"), ({"max_tokens": -1}, "max_tokens"), ({"temperature": 3}, "temperature"),
        ({"logit_bias": {"100": 1}}, "logit_bias"), ({"stream_options": {}}, "stream_options"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(members: Any, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        understood(**members)
    assert caught.value.param == param


def test_a_prompt_is_needed() -> None:
    with pytest.raises(BadRequest) as caught:
        validated({"model": "m"}, CompletionBody)
    assert (caught.value.param, caught.value.code) == ("prompt", "missing_required_parameter")


# --- answers --------------------------------------------------------------------------------------------


def test_a9_the_legacy_shape_of_log_probabilities() -> None:
    half = TokenLogprob("\ufffd", -1.0, "é".encode()[:1])
    rest = TokenLogprob("\ufffd", -1.5, "é".encode()[1:])
    lists = Legacy().lists([token("Hi", -0.1, ("He", -3.0)), half, rest, token("!")])
    assert lists == {
        "tokens": ["Hi", "\ufffd", "\ufffd", "!"],
        "token_logprobs": [-0.1, -1.0, -1.5, -0.5],
        "top_logprobs": [{"Hi": -0.1, "He": -3.0}, {"\ufffd": -1.0}, {"\ufffd": -1.5}, {"!": -0.5}],
        "text_offset": [0, 2, 2, 3],
    }


def test_the_likeliest_are_given() -> None:
    encoder = CompletionWhole(Head("c", 1, "m", "f", n=2), best_of=3)
    for index, logprob in enumerate((-3.0, -1.0, -2.0)):
        encoder.push(index, Delta(f"text {index}", logprobs=(token("x", logprob),)))
        encoder.push(index, Delta("", "stop", Usage(4, 0, 2)))
    answer = encoder.answer()
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [
        (0, "text 1"),
        (1, "text 2"),
    ]
    assert all(choice["logprobs"] is None for choice in answer["choices"])
    assert answer["usage"]["completion_tokens"] == 6, "those that are not given cost as much"


async def test_choices_are_numbered_by_their_prompts() -> None:
    model = ScriptedModel(*(words(f"reply {number}") for number in range(4)))
    answer = await asked(model, prompt=["a", "b"], n=2, echo=True)
    Completion.model_validate(answer.json)
    texts = [choice["text"] for choice in answer.json["choices"]]
    assert [text[0] for text in texts] == ["a", "a", "b", "b"]
    assert [choice["index"] for choice in answer.json["choices"]] == [0, 1, 2, 3]
    assert answer.json["usage"]["prompt_tokens"] == 20
    assert answer.json["usage"]["completion_tokens"] == 8
    assert len({request.owner for request in model.requests}) == 4


async def test_a_stream_is_the_whole_in_pieces() -> None:
    script = [
        Delta("Hi", logprobs=(token("Hi"),)),
        Delta(" you", logprobs=(token(" you"),)),
        Delta("", "length", Usage(3, 0, 2)),
    ]
    more = {"prompt": [1, 2], "logprobs": 0, "n": 2}
    whole = (await asked(ScriptedModel(script), **more)).json
    answer = await asked(ScriptedModel(script), **more, stream=True, stream_options={"include_usage": True})
    assert answer.events[-1] == "[DONE]"
    assert answer.events[-2]["choices"] == []
    assert answer.events[-2]["usage"] == whole["usage"]
    for event in answer.events[:-1]:
        assert event["object"] == "text_completion"
    pieces = [event["choices"][0] for event in answer.events[:-2]]
    for choice in whole["choices"]:
        own = [piece for piece in pieces if piece["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in own) == choice["text"] == "Hi you"
        for name, values in choice["logprobs"].items():
            joined = [value for piece in own if piece["logprobs"] for value in piece["logprobs"][name]]
            assert joined == values
        assert own[-1]["finish_reason"] == choice["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_prompt_is_said_again(stream: bool) -> None:
    answer = await asked(ScriptedModel(words(" Three.")), prompt=[1, 2], echo=True, stream=stream)
    if stream:
        text = "".join(event["choices"][0]["text"] for event in answer.events[:-1])
    else:
        text = answer.json["choices"][0]["text"]
    assert text == "<1><2> Three."


async def test_a_completion_of_no_tokens_asks_nobody() -> None:
    model = ScriptedModel()
    answer = await asked(model, prompt="One two three", max_tokens=0, echo=True)
    assert answer.json["choices"][0] == {
        "index": 0,
        "text": "One two three",
        "logprobs": None,
        "finish_reason": "length",
    }
    assert answer.json["usage"]["prompt_tokens"] == 3
    assert model.requests == []


async def test_what_the_engine_is_asked() -> None:
    model = ScriptedModel()
    await asked(model, stop=["x"], temperature=0, logprobs=2)
    [request] = model.requests
    assert isinstance(request, TextRequest)
    assert (request.limits.stop, request.limits.logprobs, request.sampling.temperature) == (("x",), 2, 0)


async def test_a_backend_without_completions() -> None:
    answer = await asked(None)
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    assert (await asked(ScriptedModel(), model="nobody")).status == 404


async def test_a17_an_error_after_the_first_chunk_is_an_event() -> None:
    answer = await asked(ScriptedModel([Delta("Hi"), EngineFailed("broken")]), stream=True)
    assert answer.events[-1]["error"]["code"] == "engine_failed"


@pytest.mark.parametrize("stream", [False, True])
async def test_a16_a_client_that_leaves_ends_every_choice(stream: bool) -> None:
    model = ScriptedModel(words("This is never said to its end."))
    model.hold.clear()
    async with served(model) as endpoint:
        await ask(endpoint, {**BODY, "prompt": ["a", "b"], "stream": stream}, leave=model.begun.wait)
        assert model.active == 0
