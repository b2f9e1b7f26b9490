"""/v1/responses: what is kept and for whom, what leaving ends, the background; then the real server."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from asking import ScriptedModel, token, words
from exchange import Exchange
from fakes import fake_engines
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response
from pydantic import BaseModel

from antiphon.llm.base import CallDelta, ChatRequest, Delta, Message
from antiphon.pipeline.engines import Engines
from antiphon.pipeline.errors import BadRequest, EngineFailed, Overloaded
from antiphon.pipeline.events import Usage
from antiphon.pipeline.settings import Settings, load
from antiphon.transport.keys import WatchedKeys, change, new_key
from antiphon.transport.server import Application, running

MODEL = Settings().llm.model
STRICT = {"max_retries": 0, "timeout": 120.0, "_strict_response_validation": True}
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class World:
    """The application around a scripted model, asked below any socket."""

    def __init__(self, app: Application, model: ScriptedModel) -> None:
        self.app = app
        self.model = model
        self.headers: dict[str, str] = {}

    def exchange(self, method: str, path: str = "", body: Any = b"") -> Exchange:
        if isinstance(body, dict):
            body = {"model": MODEL, **body}
        return Exchange(method, f"/v1/responses{path}", body, self.headers)

    async def ask(self, method: str, path: str = "", body: Any = b"") -> Exchange:
        return await self.exchange(method, path, body).ask(self.app)

    async def create(self, input: Any = "Hi.", **members: Any) -> dict[str, Any]:
        answer = await self.ask("POST", body={"input": input, **members})
        assert answer.status == 200, answer.body
        Response.model_validate(answer.json, strict=False)
        return answer.json

    async def refused(self, method: str, path: str = "", body: Any = b"") -> tuple[int | None, Any]:
        answer = await self.ask(method, path, body)
        return answer.status, answer.error["param"]

    @property
    def asked(self) -> list[list[Message]]:
        return [list(request.messages) for request in self.model.requests if isinstance(request, ChatRequest)]


def events(answer: Exchange) -> list[dict[str, Any]]:
    """Of a stream, each with its name."""
    frames = answer.body.decode().split("\n\n")
    assert frames.pop() == ""
    found: list[dict[str, Any]] = []
    for frame in frames:
        name, data = frame.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


@asynccontextmanager
async def world(
    *scripts: Any, settings: Settings | None = None, keys: WatchedKeys | None = None
) -> AsyncIterator[World]:
    model = ScriptedModel(*scripts)
    async with fake_engines(chat=model) as engines:
        app = Application(settings or Settings(), replace(engines, text=model), keys=keys)
        try:
            yield World(app, model)
        finally:
            model.hold.set()
            await app.drain(5)


# --- answers --------------------------------------------------------------------------------------------


async def test_an_answer_is_kept_and_found_again() -> None:
    async with world(words("Hello there.")) as here:
        made = await here.create(metadata={"a": "b"})
        assert made["output"][0]["content"][0]["text"] == "Hello there."
        assert made["usage"]["output_tokens"] == 2
        found = await here.ask("GET", f"/{made['id']}?include[]=message.output_text.logprobs")
        assert found.json == made
        assert [request.owner for request in here.model.requests] == [made["id"]]


async def test_the_answer_with_and_without_a_stream_is_the_same() -> None:
    script = [
        Delta("", reasoning="Hm."),
        Delta("Hi"),
        Delta("", calls=(CallDelta(0, "call_a", "weather", "{}"),)),
        Delta("", "tool_calls", Usage(9, 0, 9)),
    ]
    async with world(script) as here:
        whole = await here.create(tools=[WEATHER])
        streamed = await here.ask("POST", body={"input": "Hi.", "tools": [WEATHER], "stream": True})
        last = events(streamed)[-1]["response"]
        ids = {"id", "created_at", "completed_at"}

        def bare(response: dict[str, Any]) -> Any:
            output = [{key: item[key] for key in item if key != "id"} for item in response["output"]]
            return {**{key: response[key] for key in response if key not in ids}, "output": output}

        assert bare(last) == bare(whole)
        assert last["usage"]["output_tokens_details"]["reasoning_tokens"] == 1
        assert (await here.ask("GET", f"/{last['id']}")).json == last
        assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert len(streamed.sent) > 5, "it is sent as it is made"


async def test_the_next_turn_has_the_items_of_before_but_not_the_instructions() -> None:
    async with world(words("Hello."), words("Noon."), words("Bye.")) as here:
        first = await here.create("Hi.", instructions="Be brief.")
        second = await here.create(
            [{"role": "user", "content": "When?"}], previous_response_id=first["id"], instructions="Be kind."
        )
        await here.create("Thanks.", previous_response_id=second["id"])
        assert [[message.content for message in asked] for asked in here.asked] == [
            ["Be brief.", "Hi."],
            ["Be kind.", "Hi.", "Hello.", "When?"],
            ["Hi.", "Hello.", "When?", "Noon.", "Thanks."],
        ]
        assert second["previous_response_id"] == first["id"]


async def test_a_call_is_answered_in_the_next_turn() -> None:
    called = [Delta("", calls=(CallDelta(0, "call_a", "weather", "{}"),)), Delta("", "tool_calls", Usage())]
    async with world(called, words("Sunny.")) as here:
        first = await here.create(tools=[WEATHER])
        [call] = first["output"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sun"}
        await here.create([output], previous_response_id=first["id"], tools=[WEATHER])
        assert [message.role for message in here.asked[-1]] == ["user", "assistant", "tool"]
        reference = {"type": "item_reference", "id": call["id"]}
        await here.create([{"role": "user", "content": "x"}, reference, output])
        assert [message.role for message in here.asked[-1]] == ["user", "assistant", "tool"]


async def test_what_is_not_to_be_kept_is_not() -> None:
    async with world() as here:
        made = await here.create(store=False)
        assert made["store"] is False
        assert await here.refused("GET", f"/{made['id']}") == (404, "response_id")
        body = {"input": "x", "previous_response_id": made["id"]}
        assert await here.refused("POST", body=body) == (400, "previous_response_id")


async def test_what_was_deleted_is_gone() -> None:
    async with world() as here:
        made = await here.create()
        answer = await here.ask("DELETE", f"/{made['id']}")
        assert answer.json == {"id": made["id"], "object": "response", "deleted": True}
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
            assert await here.refused(method, f"/{made['id']}{path}") == (404, "response_id")


async def test_input_items_in_pages() -> None:
    async with world() as here:
        made = await here.create([{"role": "user", "content": str(number)} for number in range(5)])
        path = f"/{made['id']}/input_items"
        page = (await here.ask("GET", f"{path}?limit=2")).json
        assert [item["content"][0]["text"] for item in page["data"]] == ["4", "3"]
        assert page["has_more"] is True
        assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][1]["id"])
        rest = (await here.ask("GET", f"{path}?after={page['last_id']}&order=desc")).json
        assert [item["content"][0]["text"] for item in rest["data"]] == ["2", "1", "0"]
        assert rest["has_more"] is False
        upward = (await here.ask("GET", f"{path}?order=asc")).json
        assert [item["content"][0]["text"] for item in upward["data"]] == list("01234")
        assert await here.refused("GET", f"{path}?after=nobody") == (400, "after")
        assert await here.refused("GET", f"{path}?limit=101") == (400, "limit")


async def test_tokens_are_counted() -> None:
    async with world() as here:
        answer = await here.ask(
            "POST", "/input_tokens", {"input": "One two three.", "instructions": "Brief."}
        )
        assert answer.json == {"object": "response.input_tokens", "input_tokens": 4}
        assert await here.refused("POST", "/input_tokens", {}) == (400, "input")
        assert here.model.requests == []


async def test_truncation_leaves_the_oldest_turns_out() -> None:
    turns = [
        {"role": role, "content": f"{number} " + "word " * 19}
        for number in range(8)
        for role in ("user", "assistant")
    ]
    asked = [*turns, {"role": "user", "content": "Well?"}]
    async with world() as here:  # of 100 tokens, a word each
        await here.create(asked, truncation="auto", instructions="Brief.", max_output_tokens=16)
        kept = [message.content.split()[0] for message in here.asked[-1]]
        assert kept == ["Brief.", "6", "6", "7", "7", "Well?"]
        await here.create(asked, truncation="disabled")
        assert len(here.asked[-1]) == 17


async def test_log_probabilities() -> None:
    script = [Delta("Hi", logprobs=(token("Hi", -0.5, ("Ho", -1.0)),)), Delta("", "stop", Usage(1, 0, 1))]
    async with world(script) as here:
        made = await here.create(include=["message.output_text.logprobs"], top_logprobs=1)
        assert made["output"][0]["content"][0]["logprobs"][0]["top_logprobs"][0]["token"] == "Ho"
        assert made["top_logprobs"] == 1


# --- errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_engine_refuses_has_a_status_in_a_stream_too(stream: bool) -> None:
    too_long = BadRequest("the messages are too long", param="messages", code="context_length_exceeded")
    async with world([too_long], [Overloaded("full")]) as here:
        assert await here.refused("POST", body={"input": "x", "stream": stream}) == (400, "input")
        answer = await here.ask("POST", body={"input": "x", "stream": stream})
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")


async def test_a13_a_schema_that_cannot_be_held_to_is_refused_before_anything_is_asked() -> None:
    schema = {"type": "object", "properties": {"a": {"not": {}}}}
    form = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
    tool = {**WEATHER, "parameters": schema}
    async with world() as here:
        assert await here.refused("POST", body={"input": "x", "text": form}) == (400, "text.format.schema")
        assert await here.refused("POST", body={"input": "x", "tools": [tool]}) == (
            400,
            "tools[0].parameters",
        )
        assert here.model.requests == []


async def test_an_unknown_model() -> None:
    async with world() as here:
        answer = await here.ask("POST", body={"model": "nobody", "input": "x"})
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("error", [EngineFailed("broken"), RuntimeError("secret")])
async def test_a17_an_error_in_the_middle_is_an_event_and_a_failed_response(error: Exception) -> None:
    async with world([Delta("Hi"), error]) as here:
        answer = await here.ask("POST", body={"input": "x", "stream": True})
        found = events(answer)
        assert [event["type"] for event in found[-2:]] == ["error", "response.failed"]
        assert [event["sequence_number"] for event in found] == list(range(len(found)))
        last = found[-1]["response"]
        assert last["error"]["code"] == "server_error"
        assert "secret" not in answer.body.decode()
        assert (await here.ask("GET", f"/{last['id']}")).json == last
        whole = await here.ask("POST", body={"input": "x"})
        assert (whole.status, whole.error["type"]) == (500, "server_error")


# --- who sees what --------------------------------------------------------------------------------------


async def test_a_key_sees_its_own_responses_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    secrets: list[str] = []
    for name in ("one", "other"):
        key, secret = new_key(name, 0)
        change(path, lambda ring, key=key: (ring.added(key), None))
        secrets.append(secret)
    async with world(keys=WatchedKeys(path, lambda: 0.0)) as here:
        here.headers = {"authorization": f"Bearer {secrets[0]}"}
        made = await here.create()
        item = made["output"][0]["id"]
        here.headers = {"authorization": f"Bearer {secrets[1]}"}
        for method, rest in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
            assert await here.refused(method, f"/{made['id']}{rest}") == (404, "response_id")
        body = {"input": "x", "previous_response_id": made["id"]}
        assert await here.refused("POST", body=body) == (400, "previous_response_id")
        body = {"input": [{"type": "item_reference", "id": item}]}
        assert await here.refused("POST", body=body) == (400, "input[0].id")
        here.headers = {"authorization": f"Bearer {secrets[0]}"}
        assert (await here.ask("GET", f"/{made['id']}")).status == 200


# --- clients that leave, and work that goes on ----------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a16_a_client_that_leaves_ends_its_response(stream: bool) -> None:
    async with world(words("This is never said to its end.")) as here:
        here.model.hold.clear()
        exchange = here.exchange("POST", body={"input": "x", "stream": stream})
        asking = asyncio.create_task(exchange.ask(here.app))
        await here.model.begun.wait()
        exchange.leave.set()
        await asking
        assert here.model.active == 0


async def ended(here: World, id: str) -> dict[str, Any]:
    """A response in the background when it is over: its stream ends then."""
    await here.ask("GET", f"/{id}?stream=true")
    return (await here.ask("GET", f"/{id}")).json


async def test_in_the_background_it_goes_on_by_itself() -> None:
    async with world(words("Hello there, you.")) as here:
        here.model.hold.clear()
        made = await here.create(background=True)
        assert (made["status"], made["background"], made["output"]) == ("queued", True, [])
        await here.model.begun.wait()
        assert (await here.ask("GET", f"/{made['id']}")).json["status"] == "in_progress"
        body = {"input": "x", "previous_response_id": made["id"]}
        assert await here.refused("POST", body=body) == (400, "previous_response_id")
        here.model.hold.set()
        found = await ended(here, made["id"])
        assert (found["status"], found["id"]) == ("completed", made["id"])
        assert found["output"][0]["content"][0]["text"] == "Hello there, you."
        await here.create(previous_response_id=made["id"])
        assert [message.content for message in here.asked[-1]] == ["Hi.", "Hello there, you.", "Hi."]


async def test_its_events_are_read_again_from_any_of_them_on() -> None:
    async with world(words("Hello there, you.")) as here:
        here.model.hold.clear()
        first = here.exchange("POST", body={"input": "x", "background": True, "stream": True})
        asking = asyncio.create_task(first.ask(here.app))
        await here.model.begun.wait()
        first.leave.set()
        await asking
        assert here.model.active == 1, "who leaves ends nothing"
        seen = events(first)
        assert [event["type"] for event in seen[:3]] == [
            "response.created",
            "response.queued",
            "response.in_progress",
        ]
        id, number = seen[0]["response"]["id"], seen[-1]["sequence_number"]
        again = here.exchange("GET", f"/{id}?stream=true&starting_after={number}")
        following = asyncio.create_task(again.ask(here.app))
        here.model.hold.set()
        await following
        whole = [*seen, *events(again)]
        assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
        assert whole[-1]["response"]["output"][0]["content"][0]["text"] == "Hello there, you."
        assert events(await here.ask("GET", f"/{id}?stream=true")) == whole
        assert events(await here.ask("GET", f"/{id}?stream=true&starting_after=999")) == []


async def test_cancel_frees_the_engine_and_may_be_asked_twice() -> None:
    async with world(words("Hello there, you.")) as here:
        here.model.hold.clear()
        made = await here.create(background=True)
        await here.model.begun.wait()
        cancelled = (await here.ask("POST", f"/{made['id']}/cancel")).json
        assert here.model.active == 0
        assert cancelled["status"] == "cancelled"
        assert cancelled["output"][0]["status"] == "incomplete"
        assert (await here.ask("POST", f"/{made['id']}/cancel")).json == cancelled
        assert (await here.ask("GET", f"/{made['id']}")).json == cancelled
        found = events(await here.ask("GET", f"/{made['id']}?stream=true"))
        assert (found[-1]["type"], found[-1]["code"]) == ("error", "response_cancelled")


async def test_deleting_one_that_runs_ends_it() -> None:
    async with world(words("Hello there, you.")) as here:
        here.model.hold.clear()
        made = await here.create(background=True)
        await here.model.begun.wait()
        assert (await here.ask("DELETE", f"/{made['id']}")).status == 200
        assert here.model.active == 0
        assert (await here.ask("GET", f"/{made['id']}")).status == 404


@pytest.mark.parametrize(
    ("error", "code"),
    [(RuntimeError("secret"), "server_error"), (BadRequest("too long", param="messages"), "invalid_prompt")],
)
async def test_in_the_background_an_error_is_its_end(error: Exception, code: str) -> None:
    async with world([Delta("Hi"), error]) as here:
        made = await here.create(background=True)
        found = await ended(here, made["id"])
        assert (found["status"], found["error"]["code"]) == ("failed", code)
        assert "secret" not in json.dumps(found)


async def test_what_the_background_does_not_do() -> None:
    async with world(settings=load(environ={}, overrides=["responses.max_background=0"])) as here:
        assert await here.refused("POST", body={"input": "x", "background": True, "store": False}) == (
            400,
            "background",
        )
        answer = await here.ask("POST", body={"input": "x", "background": True})
        assert (answer.status, answer.error["code"]) == (503, "too_many_background_responses")
        made = await here.create()
        assert await here.refused("POST", f"/{made['id']}/cancel") == (400, "response_id")
        assert await here.refused("GET", f"/{made['id']}?stream=true") == (400, "stream")


async def test_the_end_of_the_server_ends_them() -> None:
    async with world(words("Hello there, you.")) as here:
        here.model.hold.clear()
        made = await here.create(background=True)
        await here.model.begun.wait()
        await here.app.drain(0.01)
        assert here.model.active == 0
        assert (await here.ask("GET", f"/{made['id']}")).json["status"] == "cancelled"


# --- the openai package ---------------------------------------------------------------------------------


@asynccontextmanager
async def client_of(*scripts: Any) -> AsyncIterator[AsyncOpenAI]:
    model = ScriptedModel(*scripts)

    @asynccontextmanager
    async def engines() -> AsyncIterator[Engines]:
        async with fake_engines(chat=model) as fakes:
            yield replace(fakes, text=model)

    async with (
        running(Settings(), engines=engines()) as url,
        AsyncOpenAI(base_url=url.replace("ws", "http", 1) + "/v1", api_key="x", **STRICT) as client,
    ):
        yield client


class Person(BaseModel):
    name: str
    age: int


async def test_a14_a_thinking_models_json_is_the_text_and_its_thoughts_are_elsewhere() -> None:
    script = [
        Delta("", reasoning="A person, then."),
        Delta('{"name": "Ada", '),
        Delta('"age": 36}'),
        Delta("", "stop", Usage(9, 0, 12)),
    ]
    async with client_of(script) as client:
        answer = await client.responses.parse(model=MODEL, input="Ada is 36.", text_format=Person)
        assert answer.output_parsed == Person(name="Ada", age=36)
        assert [item.type for item in answer.output] == ["reasoning", "message"]
        async with client.responses.stream(model=MODEL, input="Ada is 36.", text_format=Person) as stream:
            kinds = {event.type async for event in stream}
            final = await stream.get_final_response()
        assert final.output_parsed == Person(name="Ada", age=36)
        assert {"response.reasoning_text.delta", "response.output_text.delta"} <= kinds
        assert "A person" not in final.output_text


async def test_a17_the_openai_package_sees_an_error_in_the_middle() -> None:
    async with client_of([Delta("Hi"), EngineFailed("broken")]) as client:
        stream = await client.responses.create(model=MODEL, input="Hi.", stream=True)
        found = [event async for event in stream]
        assert [event.type for event in found[-2:]] == ["error", "response.failed"]


async def test_the_openai_package_in_the_background() -> None:
    async with client_of(words("Hello there, you.")) as client:
        stream = await client.responses.create(model=MODEL, input="Hi.", background=True, stream=True)
        first = await anext(stream)
        await stream.close()
        async with client.responses.stream(response_id=first.response.id, starting_after=0) as again:
            found = [event async for event in again]
            final = await again.get_final_response()
        assert [event.sequence_number for event in found] == list(range(1, len(found) + 1))
        assert final.output_text == "Hello there, you."
        assert (await client.responses.cancel(final.id)).status == "completed"


# --- the real server ------------------------------------------------------------------------------------


def synchronously(base_url: str) -> None:
    """What a program without an event loop does, once."""
    with OpenAI(base_url=base_url, api_key="x", **STRICT) as client:
        asked = {"model": MODEL, "input": "Say hello.", "max_output_tokens": 16, "temperature": 0}
        whole = client.responses.create(**asked)
        with client.responses.stream(**asked) as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert text == whole.output_text != ""
        next_one = client.responses.create(**asked, previous_response_id=whole.id)
        assert next_one.usage is not None
        assert whole.usage is not None
        assert next_one.usage.input_tokens > whole.usage.input_tokens
        counted = client.responses.input_tokens.count(model=MODEL, input="Say hello.")
        assert counted.input_tokens == whole.usage.input_tokens
        [item] = client.responses.input_items.list(whole.id).data
        assert item.type == "message"
        client.responses.delete(whole.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(whole.id)


@pytest.mark.model
@pytest.mark.server
@pytest.mark.slow
async def test_a19_the_openai_package_against_the_real_model() -> None:
    async with running(load(environ={}, overrides=[])) as url:
        base_url = url.replace("ws", "http", 1) + "/v1"
        await asyncio.to_thread(synchronously, base_url)
        async with AsyncOpenAI(base_url=base_url, api_key="x", **STRICT) as client:
            await tools_of(client)
            await forms_of(client)
            await lengths_of(client)
            await background_of(client)


async def tools_of(client: AsyncOpenAI) -> None:
    asked = {
        "model": MODEL,
        "input": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "name": "weather"},
        "temperature": 0,
        "max_output_tokens": 60,
    }
    whole = await client.responses.create(**asked)
    async with client.responses.stream(**asked) as stream:
        found = [event async for event in stream]
        final = await stream.get_final_response()
    assert [event.sequence_number for event in found] == list(range(len(found)))
    [call] = whole.output
    assert call.type == "function_call"
    assert isinstance(json.loads(call.arguments)["city"], str)
    assert [item.type for item in final.output] == ["function_call"]
    assert getattr(final.output[0], "arguments", None) == call.arguments
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}
    answer = await client.responses.create(
        model=MODEL, input=[output], previous_response_id=whole.id, max_output_tokens=16, temperature=0
    )
    assert answer.output_text


async def forms_of(client: AsyncOpenAI) -> None:
    asked = {"model": MODEL, "input": "Ada is 36 years old.", "temperature": 0, "max_output_tokens": 60}
    parsed = await client.responses.parse(**asked, text_format=Person)
    assert isinstance(parsed.output_parsed, Person)
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(
            **asked,
            text={
                "format": {"type": "json_schema", "name": "x", "schema": {"type": "object", "nonsense": 1}}
            },
        )
    assert caught.value.param == "text.format.schema"


async def lengths_of(client: AsyncOpenAI) -> None:
    cut = await client.responses.create(
        model=MODEL,
        input="Count from one to a hundred.",
        max_output_tokens=16,
        temperature=0,
        top_logprobs=1,
        include=["message.output_text.logprobs"],
    )
    assert cut.status == "incomplete"
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"
    [message] = cut.output
    assert message.type == "message"
    [part] = message.content
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert len(part.logprobs) == 16
    assert b"".join(bytes(entry.bytes) for entry in part.logprobs).decode() == part.text
    long = "word " * 3000
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(model=MODEL, input=long, stream=True)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
    turns = [{"role": "user", "content": long}, {"role": "user", "content": "Say hello."}]
    answer = await client.responses.create(
        model=MODEL, input=turns, truncation="auto", max_output_tokens=16, temperature=0
    )
    assert answer.usage is not None
    assert answer.usage.input_tokens < 100


async def background_of(client: AsyncOpenAI) -> None:
    stream = await client.responses.create(
        model=MODEL, input="Count from one to a hundred.", background=True, stream=True
    )
    id = (await anext(stream)).response.id
    async for event in stream:
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    assert (await client.responses.retrieve(id)).status == "in_progress"
    assert (await client.responses.cancel(id)).status == "cancelled"
