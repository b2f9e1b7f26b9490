"""POST /v1/chat/completions below the server: what the engines are asked, what is sent, what leaving ends."""

import asyncio
import base64
import io
import wave
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import openai
import pytest
from asking import Answer, ScriptedModel, ask, services, token, words
from fakes import FakeRecognizer, fake_engines, tone
from openai import AsyncOpenAI

from antiphon.asr.base import Segment, Transcription, Window
from antiphon.llm.base import CallDelta, ChatRequest, Delta
from antiphon.pipeline.errors import BadRequest, EngineFailed, Overloaded
from antiphon.pipeline.events import Usage
from antiphon.pipeline.settings import Settings
from antiphon.transport.chat import endpoints
from antiphon.transport.chat_audio import MOST_KEPT, Transcripts
from antiphon.transport.http import Endpoint
from antiphon.transport.server import running


class Hearing(FakeRecognizer):
    """One segment a window."""

    def transcribe(self, windows: Sequence[Window]) -> Sequence[Transcription]:
        self.windows += windows
        return [Transcription(self.text, (Segment(0.0, w.seconds, self.text),)) for w in windows]


BODY = {"model": "talker", "messages": [{"role": "user", "content": "Hi."}]}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "pcm16"}}


@asynccontextmanager
async def served(model: ScriptedModel, recognizer: FakeRecognizer | None = None) -> AsyncIterator[Endpoint]:
    async with fake_engines(recognizer, chat=model) as engines:
        [endpoint] = endpoints(services(replace(engines, text=model)))
        yield endpoint


async def asked(model: ScriptedModel, /, **members: Any) -> Answer:
    async with served(model) as endpoint:
        return await ask(endpoint, {**BODY, **members})


def recording(seconds: float = 0.5) -> str:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(16_000)
        sound.writeframes((tone(seconds, 16_000) * 32767).astype(np.int16).tobytes())
    return base64.b64encode(file.getvalue()).decode()


# --- answers --------------------------------------------------------------------------------------------


async def test_an_answer() -> None:
    model = ScriptedModel(words("Hello there."))
    answer = await asked(model)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["id"] == "chatcmpl-0"
    assert answer.json["created"] == 1000
    assert answer.json["model"] == "talker"
    assert answer.json["system_fingerprint"].startswith("fp_")
    assert answer.json["choices"][0]["message"]["content"] == "Hello there."
    [request] = model.requests
    assert isinstance(request, ChatRequest)
    assert request.owner == "chatcmpl-0-0"


async def test_a_stream() -> None:
    answer = await asked(ScriptedModel(words("Hello there.")), stream=True)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.events[-1] == "[DONE]"
    deltas = [event["choices"][0]["delta"] for event in answer.events[:-1]]
    assert "".join(delta.get("content", "") for delta in deltas) == "Hello there."
    assert len(answer.writes) > 3, "it is sent as it is made"


async def test_a1_usage_comes_last_and_only_when_it_is_asked_for() -> None:
    answer = await asked(ScriptedModel(), stream=True, stream_options={"include_usage": True})
    assert answer.events[-2]["choices"] == []
    assert answer.events[-2]["usage"]["completion_tokens"] == 2
    assert [event["usage"] for event in answer.events[:-2]] == [None] * (len(answer.events) - 2)
    for options in (None, {}, {"include_usage": False}):
        answer = await asked(ScriptedModel(), stream=True, stream_options=options)
        assert not any("usage" in event for event in answer.events[:-1])


async def test_a10_choices_run_beside_each_other_with_seeds_of_their_own() -> None:
    model = ScriptedModel()
    answer = await asked(model, n=6, seed=7)
    assert [choice["index"] for choice in answer.json["choices"]] == list(range(6))
    assert answer.json["usage"]["completion_tokens"] == 12
    assert answer.json["usage"]["prompt_tokens"] == 10
    assert sorted(request.sampling.seed or 0 for request in model.requests) == list(range(7, 13))
    assert len({request.owner for request in model.requests}) == 6
    assert model.most == Settings().llm.slots


async def test_a11_the_role_comes_once_a_choice() -> None:
    answer = await asked(ScriptedModel(), n=3, stream=True)
    choices = [event["choices"][0] for event in answer.events[:-1]]
    assert sorted(choice["index"] for choice in choices if "role" in choice["delta"]) == [0, 1, 2]
    assert sorted(choice["index"] for choice in choices if choice["finish_reason"]) == [0, 1, 2]


async def test_thoughts_are_counted() -> None:
    script = [Delta("", reasoning="Let me see. "), Delta("Yes.", "stop", Usage(5, 0, 9))]
    answer = await asked(ScriptedModel(script))
    assert answer.json["usage"]["completion_tokens_details"]["reasoning_tokens"] == 3
    answer = await asked(ScriptedModel(script), stream=True, stream_options={"include_usage": True})
    assert answer.events[-2]["usage"]["completion_tokens_details"]["reasoning_tokens"] == 3


async def test_a9_log_probabilities_reach_the_answer() -> None:
    script = [Delta("Hi", logprobs=(token("Hi"),)), Delta("", "stop", Usage(5, 0, 1))]
    answer = await asked(ScriptedModel(script), logprobs=True)
    assert [entry["token"] for entry in answer.json["choices"][0]["logprobs"]["content"]] == ["Hi"]


# --- errors ---------------------------------------------------------------------------------------------


async def test_an_unknown_model() -> None:
    answer = await asked(ScriptedModel(), model="nobody")
    assert answer.status == 404
    assert (answer.error["code"], answer.error["param"]) == ("model_not_found", "model")
    assert (await asked(ScriptedModel(), model="hearer")).status == 400


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_engine_refuses_has_a_status_in_a_stream_too(stream: bool) -> None:
    script = [BadRequest("too long", param="messages", code="context_length_exceeded")]
    answer = await asked(ScriptedModel(script), stream=stream)
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    answer = await asked(ScriptedModel([Overloaded("full", retry_after=3)]), stream=stream)
    assert (answer.status, answer.headers["retry-after"]) == (503, "3")


@pytest.mark.parametrize(
    ("members", "engine", "param"),
    [
        ({"response_format": SCHEMA}, "response_format", "response_format"),
        ({"guided_json": {}}, "response_format", "guided_json"),
        ({"functions": [{"name": "f"}]}, "tools", "functions"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "tools"),
    ],
)
async def test_a13_a_schema_that_cannot_be_held_to_is_named_as_it_came(
    members: Any, engine: str, param: str
) -> None:
    answer = await asked(ScriptedModel([BadRequest("no such keyword", param=engine)]), **members)
    assert (answer.status, answer.error["param"]) == (400, param)


async def test_strict_parameters_that_cannot_be_held_to_are_refused_before_anything_is_asked() -> None:
    model = ScriptedModel()
    function = {"name": "f", "strict": True, "parameters": {"type": "object", "propertes": {}}}
    answer = await asked(model, tools=[{"type": "function", "function": function}])
    assert (answer.status, answer.error["param"]) == (400, "tools[0].function.parameters")
    assert "propertes" in answer.error["message"]
    assert model.requests == []


async def test_a17_an_error_after_the_first_chunk_is_an_event() -> None:
    script = [Delta("Hi"), Delta(" there"), EngineFailed("broken")]
    answer = await asked(ScriptedModel(script), stream=True)
    assert answer.status == 200
    assert answer.events[-1] == {
        "error": {"message": "broken", "type": "server_error", "code": "engine_failed", "param": None}
    }
    assert answer.events[-2]["choices"][0]["delta"] == {"content": " there"}


@pytest.mark.server
async def test_a17_the_package_raises_an_error_in_the_middle_of_a_stream() -> None:
    script = [Delta("Hi"), Delta(" there"), RuntimeError("a secret")]
    settings = Settings()
    async with (
        running(settings, engines=fake_engines(chat=ScriptedModel(script))) as url,
        AsyncOpenAI(base_url=url.replace("ws", "http") + "/v1", api_key="x", max_retries=0) as client,
    ):
        stream = await client.chat.completions.create(
            model=settings.llm.model, messages=[{"role": "user", "content": "Hi."}], stream=True
        )
        seen: list[str] = []

        async def take() -> None:
            async for chunk in stream:
                seen.append(chunk.choices[0].delta.content or "")

        with pytest.raises(openai.APIError) as caught:
            await take()
        assert "".join(seen) == "Hi there"
        assert "secret" not in caught.value.message


# --- a client that leaves -------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a16_a_client_that_leaves_ends_every_choice(stream: bool) -> None:
    model = ScriptedModel(words("This is never said to its end."))
    model.hold.clear()

    async with served(model) as endpoint:
        answer = await ask(endpoint, {**BODY, "stream": stream, "n": 3}, leave=model.begun.wait)
        assert model.active == 0
        assert len(model.requests) == 3
    assert answer.status == (200 if stream else 0)


# --- sound ----------------------------------------------------------------------------------------------


async def test_a_recording_becomes_text_in_its_place() -> None:
    content = [
        {"type": "text", "text": "Answer:"},
        {"type": "input_audio", "input_audio": {"data": recording(), "format": "mp3"}},
    ]
    model = ScriptedModel()
    async with served(model, Hearing("what time is it")) as endpoint:
        answer = await ask(endpoint, {**BODY, "messages": [{"role": "user", "content": content}]})
    assert answer.status == 200
    [request] = model.requests
    assert isinstance(request, ChatRequest)
    assert request.messages[0].content == "Answer:\nwhat time is it"


@pytest.mark.parametrize("data", ["no base64!", base64.b64encode(b"no sound").decode()])
async def test_what_is_no_recording_is_named(data: str) -> None:
    part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    answer = await asked(ScriptedModel(), messages=[{"role": "user", "content": [part]}])
    assert (answer.status, answer.error["param"]) == (400, "messages[0].content[0].input_audio.data")


async def test_nothing_is_heard_for_a_request_that_is_wrong_elsewhere() -> None:
    part = {"type": "input_audio", "input_audio": {"data": recording(), "format": "wav"}}
    recognizer = FakeRecognizer()
    async with served(ScriptedModel(), recognizer) as endpoint:
        messages = [{"role": "user", "content": [part]}]
        answer = await ask(endpoint, {**BODY, "messages": messages, "tool_choice": "required"})
    assert answer.error["param"] == "tool_choice"
    assert recognizer.windows == []


async def test_a_spoken_answer_and_what_it_said_later() -> None:
    model = ScriptedModel(words("Hello there. This is it."))
    async with served(model) as endpoint:
        answer = await ask(endpoint, {**BODY, **SPOKEN})
        audio = answer.json["choices"][0]["message"]["audio"]
        assert audio["transcript"] == "Hello there. This is it."
        assert len(base64.b64decode(audio["data"])) % 2 == 0
        assert answer.json["choices"][0]["message"]["content"] is None
        assert answer.json["usage"]["completion_tokens_details"]["audio_tokens"] > 0
        said = {"role": "assistant", "audio": {"id": audio["id"]}}
        await ask(endpoint, {**BODY, "messages": [*BODY["messages"], said, *BODY["messages"]]})
    last = model.requests[-1]
    assert isinstance(last, ChatRequest)
    assert last.messages[1].content == "Hello there. This is it."


async def test_a_spoken_stream_is_the_spoken_whole() -> None:
    whole = await asked(ScriptedModel(words("Hello there. This is it.")), **SPOKEN)
    answer = await asked(ScriptedModel(words("Hello there. This is it.")), **SPOKEN, stream=True)
    deltas = [event["choices"][0]["delta"] for event in answer.events[:-1]]
    found = [delta["audio"] for delta in deltas if "audio" in delta]
    audio = whole.json["choices"][0]["message"]["audio"]
    assert "".join(piece.get("transcript", "") for piece in found) == audio["transcript"]
    assert "".join(piece.get("data", "") for piece in found) == audio["data"]
    assert deltas[-1] == {}
    assert not any(delta.get("content") for delta in deltas)


async def test_a_call_is_not_spoken() -> None:
    script = [Delta("", calls=(CallDelta(0, "c", "f", "{}"),)), Delta("", "tool_calls", Usage(1, 0, 2))]
    answer = await asked(ScriptedModel(script), **SPOKEN)
    message = answer.json["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["name"] == "f"
    assert "audio" not in message


async def test_an_unknown_voice() -> None:
    answer = await asked(ScriptedModel(), **{**SPOKEN, "audio": {"voice": "bob", "format": "mp3"}})
    assert (answer.status, answer.error["param"]) == (400, "audio.voice")


def test_transcripts_are_kept_for_a_time_and_no_more_than_so_many() -> None:
    transcripts = Transcripts()
    for number in range(MOST_KEPT + 1):
        transcripts.keep(f"a{number}", "text", expires_at=10.0)
    assert transcripts.get("a0", 0.0) is None
    assert transcripts.get("a1", 9.9) == "text"
    assert transcripts.get("a1", 10.0) is None


async def test_a16_leaving_a_spoken_answer_ends_it() -> None:
    model = ScriptedModel(words("Hello there. " * 30))
    model.hold.clear()
    async with served(model) as endpoint:
        await ask(endpoint, {**BODY, **SPOKEN, "stream": True}, leave=model.begun.wait)
        assert model.active == 0
    await asyncio.sleep(0)
