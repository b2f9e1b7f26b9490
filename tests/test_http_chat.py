"""Chat and completions through a real server, on real models, with OpenAI's own package, strict.

The assertions A1 to A17 that concern chat, by their names. One server in a thread of this process, so that
the engine can be asked what it computes.
"""

import asyncio
import http.client
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from antiphon.llm.llamacpp import LlamaCpp
from antiphon.pipeline.engines import Engines
from antiphon.pipeline.settings import Settings
from antiphon.transport.engines import load_engines
from antiphon.transport.server import running

pytestmark = [pytest.mark.server, pytest.mark.model, pytest.mark.slow]

T = TypeVar("T")
SETTINGS = Settings()
MODEL = SETTINGS.llm.model
SETUP = {"api_key": "unused", "max_retries": 0, "timeout": 120.0, "_strict_response_validation": True}
FREED = 1.0
"""Seconds until the engine is free once a client has left; more than the little that is needed, and much less
than what the requests that are left would run on for."""
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
CLOCK = {"type": "function", "function": {"name": "get_time", "description": "The time of day."}}


@dataclass
class Running:
    """url: "http://127.0.0.1:port". run: a coroutine in the server's loop, to its result."""

    url: str
    chat: LlamaCpp
    loop: asyncio.AbstractEventLoop

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        async def done() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(done(), self.loop).result(60)

    def until(self, decides: Callable[[float], bool], counter: str, seconds: float) -> None:
        """Wait until the engine's count of something is as it should be."""

        async def looked() -> None:
            async with asyncio.timeout(seconds):
                while not decides((await self.chat.counters())[counter]):  # noqa: ASYNC110
                    await asyncio.sleep(0.005)

        self.run(looked)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    ready: Future[Running] = Future()
    stop: list[Callable[[], None]] = []

    async def serve() -> None:
        loaded: list[Engines] = []

        @asynccontextmanager
        async def engines() -> AsyncIterator[Engines]:
            async with load_engines(SETTINGS) as models:
                loaded.append(models)
                yield models

        async with running(SETTINGS, engines=engines()) as url:
            stopped, loop = asyncio.Event(), asyncio.get_running_loop()
            stop.append(lambda: loop.call_soon_threadsafe(stopped.set))
            chat = loaded[0].chat
            assert isinstance(chat, LlamaCpp)
            ready.set_result(Running(url.replace("ws:", "http:"), chat, loop))
            await stopped.wait()

    def main() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    thread = threading.Thread(target=main, name="server")
    thread.start()
    yield ready.result(120)
    stop[0]()
    thread.join(60)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.url + "/v1", **SETUP) as client:
        yield client


def body(text: str = "Say hello.", **members: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": 24,
        **members,
    }


def whole(client: OpenAI, asked: Mapping[str, Any]) -> ChatCompletion:
    answer = client.chat.completions.create(**asked)
    assert isinstance(answer, ChatCompletion)
    return answer


def streamed(client: OpenAI, asked: Mapping[str, Any]) -> list[ChatCompletionChunk]:
    with client.chat.completions.create(**asked, stream=True) as stream:
        return list(stream)


def text_of(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


def reason_of(chunks: list[ChatCompletionChunk], index: int = 0) -> str | None:
    return [c for chunk in chunks for c in chunk.choices if c.index == index][-1].finish_reason


def both(client: OpenAI, asked: Mapping[str, Any]) -> tuple[str, str]:
    """(text, finish_reason) of an answer, after looking that the stream says the same."""
    choice = whole(client, asked).choices[0]
    chunks = streamed(client, asked)
    assert text_of(chunks) == (choice.message.content or "")
    assert reason_of(chunks) == choice.finish_reason
    return choice.message.content or "", choice.finish_reason


# --- streams --------------------------------------------------------------------------------------------


def test_a1_usage(client: OpenAI) -> None:
    asked = body(max_tokens=4)
    chunks = streamed(client, {**asked, "stream_options": {"include_usage": True}})
    last = chunks[-1]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.prompt_tokens + last.usage.completion_tokens == last.usage.total_tokens
    assert last.usage.completion_tokens == 4
    assert all(chunk.usage is None and chunk.choices for chunk in chunks[:-1])
    for options in ({}, None):
        found = streamed(client, {**asked, "stream_options": options})
        assert all(chunk.usage is None and chunk.choices for chunk in found)


def test_a2_reasons_to_finish(client: OpenAI) -> None:
    said, reason = both(client, body())
    assert reason == "stop"
    assert both(client, body(max_tokens=3))[1] == "length"
    cut, reason = both(client, body(stop=said.split()[2]))
    assert reason == "stop"
    assert said.startswith(cut)
    assert cut != said
    question = {"text": "What is the weather in Oslo?", "tools": [WEATHER], "max_tokens": 60}
    assert both(client, body(**question, tool_choice="required"))[1] == "tool_calls"
    named = {"type": "function", "function": {"name": "get_weather"}}
    assert both(client, body(**question, tool_choice=named))[1] == "tool_calls"


@pytest.mark.parametrize(
    "text", ["你好，世界。今天天气很好。", "👍🏽 🎉 🇫🇷 ❤️‍🔥", "👨‍👩‍👧‍👦 👩🏾‍🚀", "été naïve Ω ж ñ"]
)
def test_a3_a_stream_is_the_whole_in_pieces(client: OpenAI, text: str) -> None:
    asked = body(f"Repeat exactly, nothing else: {text}", max_tokens=40, seed=1)
    said, _ = both(client, asked)
    assert "\ufffd" not in said
    prompt = f"{text} {text} {text}"
    completed = client.completions.create(model=MODEL, prompt=prompt, max_tokens=30, temperature=0)
    # Not strictly: the package's type of a chunk forbids the null that OpenAI sends before the last.
    lenient = client.with_options(_extra_kwargs={"_strict_response_validation": False})
    with lenient.completions.create(
        model=MODEL, prompt=prompt, max_tokens=30, temperature=0, stream=True
    ) as found:
        pieces = [chunk.choices[0].text for chunk in found]
    assert "".join(pieces) == completed.choices[0].text
    assert any(ord(character) > 127 for character in completed.choices[0].text)
    assert "\ufffd" not in "".join(pieces)


def test_a4_stop_strings(client: OpenAI) -> None:
    ask = "Count from one to ten in English words, with commas."
    said, _ = both(client, body(ask, max_tokens=20))
    assert len(said) > 30
    # Spans of 2 to 5 tokens, and within a word; overlapping ones; the very beginning.
    for stop in (
        said[8:13],
        said[5:25],
        said[3:6],
        said[:4],
        [said[9:20], said[9:15]],
        [said[12:22], said[9:20]],
    ):
        stops = [stop] if isinstance(stop, str) else stop
        expected = said[: min(said.index(one) for one in stops)]
        assert both(client, body(ask, max_tokens=20, stop=stop)) == (expected, "stop")
    # A beginning that does not go on is told, in the middle and at the end.
    assert both(client, body(ask, max_tokens=20, stop=said[5:12] + "~"))[0] == said
    assert both(client, body(ask, max_tokens=20, stop=said[-3:] + "~"))[0] == said


# --- tools ----------------------------------------------------------------------------------------------


def test_a5_a_call_in_a_stream(client: OpenAI) -> None:
    asked = body(
        "What is the weather in Oslo?", tools=[WEATHER, CLOCK], tool_choice="required", max_tokens=80
    )
    message = whole(client, asked).choices[0].message
    assert message.tool_calls
    assert not message.content
    chunks = streamed(client, asked)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    indices = [call.index for call in calls]
    assert indices == sorted(indices)
    assert set(indices) == set(range(len(message.tool_calls)))
    for index, told in enumerate(message.tool_calls):
        assert told.type == "function"
        own = [call for call in calls if call.index == index]
        assert [bool(call.id) for call in own] == [True] + [False] * (len(own) - 1)
        assert [call.type for call in own] == ["function"] + [None] * (len(own) - 1)
        assert [bool(call.function and call.function.name) for call in own] == [True] + [False] * (
            len(own) - 1
        )
        assert own[0].function is not None
        assert own[0].function.name == told.function.name
        arguments = "".join((call.function and call.function.arguments) or "" for call in own)
        assert arguments == told.function.arguments
        assert isinstance(json.loads(arguments), dict)
    assert not text_of(chunks)
    assert not deltas[-1].model_dump(exclude_none=True)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    with client.chat.completions.stream(**asked) as stream:
        final = stream.get_final_completion().choices[0].message
    assert final.tool_calls
    assert [(c.function.name, c.function.arguments) for c in final.tool_calls] == [
        (c.function.name, c.function.arguments) for c in message.tool_calls if c.type == "function"
    ]


def test_a5_calls_are_answered_and_the_conversation_goes_on(client: OpenAI) -> None:
    asked = body("What is the weather in Oslo?", tools=[WEATHER], tool_choice="required", max_tokens=60)
    message = whole(client, {**asked, "parallel_tool_calls": False}).choices[0].message
    assert message.tool_calls
    answers = [
        {"role": "tool", "tool_call_id": call.id, "content": "7 degrees and rain"}
        for call in message.tool_calls
    ]
    told = message.model_dump(exclude_none=True, exclude={"annotations"})
    later = whole(client, body(messages=[*asked["messages"], told, *answers], tools=[WEATHER], max_tokens=4))
    before = whole(client, {**asked, "max_tokens": 1})
    assert later.usage is not None
    assert before.usage is not None
    assert later.usage.prompt_tokens > before.usage.prompt_tokens + 20, "the model reads what was answered"


def test_a6_a_call_that_is_cut_off(client: OpenAI) -> None:
    asked = body("What is the weather in Oslo?", tools=[WEATHER], tool_choice="required", max_tokens=13)
    choice = whole(client, asked).choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls
    [told] = choice.message.tool_calls
    assert told.type == "function"
    chunks = streamed(client, asked)
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert (
        "".join((c.function and c.function.arguments) or "" for c in calls) == told.function.arguments != ""
    )
    assert reason_of(chunks) == "length"


def test_a7_whether_tools_are_called(client: OpenAI) -> None:
    ask = "What is the weather in Oslo and in Rome? Call the tool."
    tools = {"tools": [WEATHER, CLOCK], "max_tokens": 60}
    message = whole(client, body(ask, **tools, tool_choice="none")).choices[0].message
    assert not message.tool_calls
    assert "<tool_call>" not in (message.content or "")
    named = {"type": "function", "function": {"name": "get_time"}}
    allowed = {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "required",
            "tools": [{"type": "function", "function": {"name": "get_time"}}],
        },
    }
    for choice in (named, allowed):
        message = whole(client, body(ask, **tools, tool_choice=choice)).choices[0].message
        assert message.tool_calls
        assert {call.function.name for call in message.tool_calls if call.type == "function"} == {"get_time"}
    message = (
        whole(client, body(ask, **tools, tool_choice="required", parallel_tool_calls=False))
        .choices[0]
        .message
    )
    assert message.tool_calls
    assert len(message.tool_calls) == 1


def test_a8_tools_do_not_hold_up_an_answer_in_words(client: OpenAI) -> None:
    chunks = streamed(client, body("Write a short poem about rain.", tools=[CLOCK]))
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content]
    assert len(pieces) >= 4, "it comes as it is made"
    assert "rain" in "".join(pieces).lower()


def test_deprecated_functions(client: OpenAI) -> None:
    asked = body("What is the weather in Oslo?", functions=[WEATHER["function"]], max_tokens=60)
    choice = whole(client, {**asked, "function_call": {"name": "get_weather"}}).choices[0]
    assert choice.finish_reason == "function_call"
    assert choice.message.function_call is not None
    assert "city" in json.loads(choice.message.function_call.arguments)
    chunks = streamed(client, {**asked, "function_call": {"name": "get_weather"}})
    calls = [c.choices[0].delta.function_call for c in chunks if c.choices[0].delta.function_call]
    assert "".join(call.arguments or "" for call in calls) == choice.message.function_call.arguments


def test_a_custom_tool_with_a_grammar(client: OpenAI) -> None:
    grammar = {"syntax": "regex", "definition": "SELECT [a-z]+ FROM [a-z]+"}
    custom = {
        "name": "sql",
        "description": "Runs SQL.",
        "format": {"type": "grammar", "grammar": grammar},
    }
    asked = body("Select the names from people.", tools=[{"type": "custom", "custom": custom}], max_tokens=60)
    message = whole(client, {**asked, "tool_choice": "required"}).choices[0].message
    assert message.tool_calls
    assert message.tool_calls[0].type == "custom"
    assert message.tool_calls[0].custom.input.startswith("SELECT ")


# --- log probabilities ----------------------------------------------------------------------------------


def test_a9_log_probabilities(client: OpenAI) -> None:
    asked = body(logprobs=True)
    answer = whole(client, asked)
    told = answer.choices[0].logprobs
    assert told is not None
    assert told.content is not None
    assert answer.usage is not None
    assert len(told.content) == answer.usage.completion_tokens
    assert all(entry.top_logprobs == [] and -9999 <= entry.logprob <= 0 for entry in told.content)
    text = answer.choices[0].message.content or ""
    assert b"".join(bytes(entry.bytes or ()) for entry in told.content) == text.encode()
    poem = body("Write a short poem about rain.", tools=[CLOCK], logprobs=True, top_logprobs=3)
    chunks = streamed(client, poem)
    assert text_of(chunks)
    entries = [
        entry
        for chunk in chunks
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content or ()
    ]
    assert all(len(entry.top_logprobs) == 3 for entry in entries)
    assert b"".join(bytes(entry.bytes or ()) for entry in entries) == text_of(chunks).encode()
    legacy = client.completions.create(
        model=MODEL, prompt="One, two,", max_tokens=4, temperature=0, logprobs=2
    )
    lists = legacy.choices[0].logprobs
    assert lists is not None
    assert lists.tokens is not None
    assert "".join(lists.tokens) == legacy.choices[0].text
    assert lists.text_offset is not None
    assert [
        legacy.choices[0].text[at:].startswith(t)
        for at, t in zip(lists.text_offset, lists.tokens, strict=True)
    ]
    with pytest.raises(openai.BadRequestError) as caught:
        whole(client, body(top_logprobs=3))
    assert caught.value.param == "top_logprobs"


# --- choices --------------------------------------------------------------------------------------------


def test_a10_three_choices(client: OpenAI) -> None:
    asked = body("Name an animal.", n=3, seed=5, temperature=1.5, max_tokens=5, logprobs=True)
    answer = whole(client, asked)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) > 1
    assert answer.usage is not None
    counts = [len((choice.logprobs and choice.logprobs.content) or ()) for choice in answer.choices]
    assert answer.usage.completion_tokens == sum(counts) > 5
    chunks = streamed(client, {**asked, "stream_options": {"include_usage": True}})
    assert sorted({choice.index for chunk in chunks for choice in chunk.choices}) == [0, 1, 2]
    for index in range(3):
        reasons = [c.finish_reason for chunk in chunks for c in chunk.choices if c.index == index]
        assert len([reason for reason in reasons if reason]) == 1
        assert reasons[-1] in ("stop", "length")
    told = [c.logprobs.content or () for chunk in chunks for c in chunk.choices if c.logprobs]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == sum(map(len, told))
    assert chunks[-1].usage.prompt_tokens == answer.usage.prompt_tokens


def test_a11_the_role_comes_once(client: OpenAI) -> None:
    chunks = streamed(client, body(n=2, max_tokens=3))
    for index in (0, 1):
        own = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert [choice.delta.role for choice in own] == ["assistant"] + [None] * (len(own) - 1)


# --- forms ----------------------------------------------------------------------------------------------


class Person(BaseModel):
    name: str
    age: int


def test_the_helpers_for_structured_output(client: OpenAI) -> None:
    asked = body("Ada is 36 years old.", response_format=Person, max_tokens=60)
    parsed = client.chat.completions.parse(**asked).choices[0].message.parsed
    assert isinstance(parsed, Person)
    with client.chat.completions.stream(**asked) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.parsed == parsed
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**{**asked, "max_tokens": 3})


def test_an_object_and_a_vendors_schema(client: OpenAI) -> None:
    said = whole(client, body("Describe Ada.", response_format={"type": "json_object"}, max_tokens=80))
    text = said.choices[0].message.content or ""
    assert text.startswith("{")
    if said.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text), dict)
    schema = {
        "type": "object",
        "properties": {"n": {"enum": [7]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    for extra in ({"guided_json": schema}, {"structured_outputs": {"json": schema}}):
        found = whole(client, body(extra_body=extra)).choices[0].message.content
        assert json.loads(found or "") == {"n": 7}


@pytest.mark.parametrize("stream", [False, True])
def test_a13_a_schema_that_cannot_be_held_to(client: OpenAI, stream: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "strin"}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**body(response_format=form), stream=stream)
    assert caught.value.param == "response_format"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**body(extra_body={"guided_json": schema}), stream=stream)
    assert caught.value.param == "guided_json"


def test_a_conversation_that_does_not_fit(client: OpenAI) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**body("word " * 3000), stream=stream)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


def test_a_bias_and_a_seed(client: OpenAI, server: Running) -> None:
    [token] = server.run(lambda: server.chat.tokenize(" hello"))
    said = whole(client, body(logit_bias={str(token): 100}, max_tokens=3)).choices[0].message.content
    assert said == " hello hello hello"
    drawn = body("Name an animal.", temperature=0.9, seed=11, max_tokens=6)
    assert whole(client, drawn).choices[0].message.content == whole(client, drawn).choices[0].message.content


# --- asynchronous clients -------------------------------------------------------------------------------


def test_the_asynchronous_client(server: Running) -> None:
    async def asked() -> tuple[str | None, str]:
        async with AsyncOpenAI(base_url=server.url + "/v1", **SETUP) as client:
            answer = await client.chat.completions.create(**body())
            stream = await client.chat.completions.create(**body(), stream=True)
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
            return answer.choices[0].message.content, "".join(pieces)

    said, joined = asyncio.run(asked())
    assert said == joined != ""


# --- a client that leaves -------------------------------------------------------------------------------

LONG = " ".join(f"word{number}" for number in range(500))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a16_a_client_that_leaves_frees_the_engine(
    server: Running, path: str, phase: str, stream: bool
) -> None:
    """By the engine's own count, over a socket that is closed while it computes what would take half a minute."""
    text = f"{path} {stream}: {LONG}" if phase == "prefill" else "Count to a thousand, in words."
    [end] = server.run(lambda: server.chat.tokenize("<|im_end|>"))
    asked = {
        "model": MODEL,
        "max_tokens": 1500,
        "stream": stream,
        "logit_bias": {str(end): -100},
        "temperature": 0,
    }
    prompt = {"messages": [{"role": "user", "content": text}]} if "chat" in path else {"prompt": text}
    assert server.run(server.chat.busy) == 0
    decodes = server.run(server.chat.counters)["n_decode_total"]
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    connection.request("POST", path, json.dumps({**asked, **prompt}), {"Content-Type": "application/json"})
    if phase == "prefill":
        server.until(lambda count: count > 0, "requests_processing", 20)
    elif stream:
        response = connection.getresponse()
        assert response.readline().startswith(b"data: ")
    else:
        server.until(lambda count: count > decodes + 15, "n_decode_total", 20)
    assert server.run(server.chat.busy) == 1
    connection.close()
    if phase == "decode" and stream:
        response.close()
    server.until(lambda count: count == 0, "requests_processing", FREED)
