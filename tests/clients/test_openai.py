"""The stock `openai` package, strict about every member, sync and async, against every endpoint."""

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, AsyncStream, OpenAI, Stream
from pydantic import BaseModel

pytestmark = [pytest.mark.server, pytest.mark.model, pytest.mark.slow]

SETUP = {"api_key": "unused", "max_retries": 0, "timeout": 120.0, "_strict_response_validation": True}
HELLO = [{"role": "user", "content": "Say hello."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
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


class Person(BaseModel):
    name: str
    age: int


Call = Callable[..., Any]
"""call("chat.completions.create", …) gives the answer; of a stream, the list of its events."""


@pytest.fixture(scope="module", params=["sync", "async"])
def call(request: pytest.FixtureRequest, base_url: str) -> Iterator[Call]:
    if request.param == "sync":
        with OpenAI(base_url=base_url, **SETUP) as client:

            def ask(path: str, **members: Any) -> Any:
                result = attrgetter(path)(client)(**members)
                return list(result) if isinstance(result, Stream) else result

            yield ask
        return
    with asyncio.Runner() as runner:
        asynchronous = AsyncOpenAI(base_url=base_url, **SETUP)

        async def asked(path: str, members: dict[str, Any]) -> Any:
            result = await attrgetter(path)(asynchronous)(**members)
            return [event async for event in result] if isinstance(result, AsyncStream) else result

        yield lambda path, **members: runner.run(asked(path, members))
        runner.run(asynchronous.close())


@pytest.fixture(scope="module")
def client(base_url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=base_url, **SETUP) as client:
        yield client


@pytest.fixture(scope="module")
def lenient(base_url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=base_url, **{**SETUP, "_strict_response_validation": False}) as client:
        yield client


@pytest.fixture(scope="module")
def model(client: OpenAI) -> str:
    return next(entry.id for entry in client.models.list() if "instruct" in entry.id)


@pytest.fixture(scope="module")
def embedding_model(client: OpenAI) -> str:
    names = [entry.id for entry in client.models.list() if "minilm" in entry.id.lower()]
    if not names:
        pytest.skip("no embedding model is configured")
    return names[0]


@pytest.fixture(scope="module")
def recording(question: Path) -> tuple[str, bytes]:
    return question.name, question.read_bytes()


# --- models ---------------------------------------------------------------------------------------------


def test_models(call: Call, model: str) -> None:
    assert call("models.retrieve", model=model).id == model
    with pytest.raises(openai.NotFoundError) as caught:
        call("models.retrieve", model="nothing/here:1")
    assert caught.value.code == "model_not_found"
    assert caught.value.request_id


# --- chat -----------------------------------------------------------------------------------------------


def test_chat(call: Call, model: str) -> None:
    asked = {"model": model, "messages": HELLO, "max_completion_tokens": 12, "temperature": 0, "seed": 1}
    whole = call("chat.completions.create", **asked)
    assert whole.choices[0].message.content
    assert whole._request_id
    usage = {"stream_options": {"include_usage": True}}
    chunks = call("chat.completions.create", **asked, stream=True, **usage)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason


def test_chat_logprobs(call: Call, model: str) -> None:
    asked = {"model": model, "messages": HELLO, "max_tokens": 4, "temperature": 0}
    answer = call("chat.completions.create", **asked, logprobs=True, top_logprobs=2)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    assert all(len(entry.top_logprobs) == 2 for entry in entries)


def test_tools(call: Call, model: str) -> None:
    asked = {
        "model": model,
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [WEATHER],
        "tool_choice": "required",
        "temperature": 0,
        "max_tokens": 60,
    }
    choice = call("chat.completions.create", **asked).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert isinstance(json.loads(choice.message.tool_calls[0].function.arguments)["city"], str)
    deltas = [
        piece
        for chunk in call("chat.completions.create", **asked, stream=True)
        for piece in (chunk.choices[0].delta.tool_calls or [])
    ]
    first = choice.message.tool_calls[0].function.arguments
    assert "".join(piece.function.arguments or "" for piece in deltas if piece.index == 0) == first


def test_structured_output(call: Call, model: str) -> None:
    answer = call(
        "chat.completions.parse",
        model=model,
        messages=[{"role": "user", "content": "Ada is 36 years old."}],
        response_format=Person,
        temperature=0,
        max_tokens=60,
    )
    assert isinstance(answer.choices[0].message.parsed, Person)


def test_the_helper_for_streams(client: OpenAI, model: str) -> None:
    messages = [{"role": "user", "content": "Ada is 36 years old."}]
    with client.chat.completions.stream(
        model=model, messages=messages, response_format=Person, temperature=0, max_tokens=60
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"content.delta", "content.done", "chunk"} <= kinds
    assert isinstance(final.choices[0].message.parsed, Person)


def test_a_spoken_answer_to_a_spoken_question(call: Call, model: str, recording: tuple[str, bytes]) -> None:
    sound = {"data": base64.b64encode(recording[1]).decode(), "format": "wav"}
    answer = call(
        "chat.completions.create",
        model=model,
        messages=[{"role": "user", "content": [{"type": "input_audio", "input_audio": sound}]}],
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "wav"},
        max_tokens=12,
        temperature=0,
    )
    audio = answer.choices[0].message.audio
    assert audio.transcript
    assert base64.b64decode(audio.data).startswith(b"RIFF")


def test_refusals(call: Call, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        call("chat.completions.create", model=model, messages=HELLO, temperature=3)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        call("chat.completions.create", model="nothing", messages=HELLO)


# --- completions, embeddings ----------------------------------------------------------------------------


def test_completions(call: Call, lenient: OpenAI, model: str) -> None:
    asked = {"model": model, "prompt": "One, two, three,", "max_tokens": 6, "temperature": 0}
    whole = call("completions.create", **asked)
    # Not strictly: of a chunk before the last, finish_reason is null on OpenAI's wire, and in no type of theirs.
    chunks = list(lenient.completions.create(**asked, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text != ""
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == [
        "length"
    ]


def test_embeddings(call: Call, lenient: OpenAI, embedding_model: str) -> None:
    asked = {"model": embedding_model, "input": ["a cat", "a kitten", "the tax law of 1913"]}
    plain = call("embeddings.create", **asked, encoding_format="float")
    assert [entry.index for entry in plain.data] == [0, 1, 2]
    # Not strictly: by default the SDK asks for base64, and takes it for a mistake before it decodes it.
    packed = lenient.embeddings.create(**asked)
    for one, other in zip(packed.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)


# --- responses ------------------------------------------------------------------------------------------


def test_responses(call: Call, model: str) -> None:
    asked = {"model": model, "input": "Say hello.", "max_output_tokens": 16, "temperature": 0}
    answer = call("responses.create", **asked)
    assert answer.output_text
    assert call("responses.retrieve", response_id=answer.id).output_text == answer.output_text
    items = call("responses.input_items.list", response_id=answer.id)
    assert [item.role for item in items.data] == ["user"]
    followed = call("responses.create", **asked, previous_response_id=answer.id)
    assert followed.usage.input_tokens > answer.usage.input_tokens
    counted = call("responses.input_tokens.count", model=model, input="Say hello.")
    assert counted.input_tokens == answer.usage.input_tokens
    call("responses.delete", response_id=answer.id)
    with pytest.raises(openai.NotFoundError):
        call("responses.retrieve", response_id=answer.id)


def test_responses_streamed(call: Call, model: str) -> None:
    asked = {"model": model, "input": "Say hello.", "max_output_tokens": 16, "temperature": 0}
    events = call("responses.create", **asked, stream=True)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text


def test_responses_with_tools_and_schema(call: Call, model: str) -> None:
    tool = {"type": "function", **WEATHER["function"]}
    answer = call(
        "responses.create",
        model=model,
        input="What is the weather in Paris?",
        tools=[tool],
        tool_choice="required",
        temperature=0,
        max_output_tokens=60,
    )
    assert answer.output[0].type == "function_call"
    parsed = call(
        "responses.parse",
        model=model,
        input="Ada is 36 years old.",
        text_format=Person,
        temperature=0,
        max_output_tokens=60,
    )
    assert isinstance(parsed.output_parsed, Person)


# --- audio ----------------------------------------------------------------------------------------------


def test_transcription(call: Call, recording: tuple[str, bytes]) -> None:
    asked = {"model": "whisper-1", "file": recording}
    text = call("audio.transcriptions.create", **asked).text
    assert "unusual" in text.lower()
    assert call("audio.transcriptions.create", **asked, response_format="text").strip() == text
    assert "-->" in call("audio.transcriptions.create", **asked, response_format="srt")
    assert call("audio.transcriptions.create", **asked, response_format="vtt").startswith("WEBVTT")
    *deltas, done = call("audio.transcriptions.create", **asked, stream=True)
    assert (done.type, done.text) == ("transcript.text.done", text)
    assert "".join(event.delta for event in deltas if event.type == "transcript.text.delta") == text


def test_transcription_with_times(call: Call, recording: tuple[str, bytes]) -> None:
    answer = call(
        "audio.transcriptions.create",
        model="whisper-1",
        file=recording,
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
    )
    assert answer.language == "english"
    assert answer.segments
    assert [word.start for word in answer.words] == sorted(word.start for word in answer.words)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the SDK warns of what OpenAI will take down
def test_translation(call: Call, recording: tuple[str, bytes]) -> None:
    assert call("audio.translations.create", model="whisper-1", file=recording).text


def test_a28_speech(call: Call, recording: tuple[str, bytes]) -> None:
    asked = {"model": "tts-1", "voice": "alloy", "input": "Good morning. How are you today?"}
    answer = call("audio.speech.create", **asked)
    assert answer.response.headers["content-type"] == "audio/mpeg"
    heard = call("audio.transcriptions.create", model="whisper-1", file=("speech.mp3", answer.content))
    assert "good morning" in heard.text.lower()
    sizes = [
        len(call("audio.speech.create", **asked, response_format="pcm", speed=speed).content)
        for speed in (1, 2)
    ]
    assert 0.4 < sizes[1] / sizes[0] < 0.65
    for mistake in ({"input": "x" * 4097}, {"voice": "nobody"}, {"speed": 5}):
        with pytest.raises(openai.BadRequestError) as caught:
            call("audio.speech.create", **{**asked, **mistake})
        assert caught.value.param == next(iter(mistake))


def test_a28_speech_is_streamed(client: OpenAI) -> None:
    asked = {"model": "tts-1", "voice": {"id": "heart"}, "input": "One sentence. Another sentence."}
    with client.audio.speech.with_streaming_response.create(**asked, response_format="wav") as answer:
        pieces = list(answer.iter_bytes())
    assert answer.headers["content-type"] == "audio/wav"
    assert b"".join(pieces).startswith(b"RIFF\xff\xff\xff\xff")
    with client.audio.speech.with_streaming_response.create(**asked, stream_format="sse") as answer:
        events = [json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line]
    assert {event["type"] for event in events[:-1]} == {"speech.audio.delta"}
    assert events[-1]["type"] == "speech.audio.done"


# --- realtime -------------------------------------------------------------------------------------------


def test_client_secrets(call: Call) -> None:
    secret = call("realtime.client_secrets.create", session={"type": "realtime"})
    assert secret.value.startswith("ek_")
    assert secret.session.type == "realtime"
