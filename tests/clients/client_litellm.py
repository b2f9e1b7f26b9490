"""litellm, which speaks to every OpenAI-like server under `openai/` and `hosted_vllm/`."""

import json
import os

import checking
from checking import BASE_URL, KEY, QUESTION
from pydantic import BaseModel

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it downloads its price list at import

import litellm

litellm.suppress_debug_info = True

MODEL = checking.chat_model()
HERE = {"api_base": BASE_URL, "api_key": KEY, "timeout": 100, "max_retries": 0}
CHAT = {**HERE, "model": f"openai/{MODEL}", "temperature": 0, "seed": 1, "max_tokens": 24}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


class Person(BaseModel):
    name: str
    age: int


def asks(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def check_chat() -> None:
    for name in ("openai", "hosted_vllm"):
        answer = litellm.completion(**{**CHAT, "model": f"{name}/{MODEL}"}, messages=asks("Say hello."))
        assert answer.choices[0].message.content
        assert answer.usage.completion_tokens > 0


def check_stream() -> None:
    whole = litellm.completion(**CHAT, messages=asks("Say hello."))
    chunks = list(
        litellm.completion(
            **CHAT, messages=asks("Say hello."), stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    usages = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
    assert usages[-1].completion_tokens == whole.usage.completion_tokens


async def check_async_stream() -> None:
    stream = await litellm.acompletion(**CHAT, messages=asks("Count to three."), stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


def check_tools() -> None:
    asked = {
        **CHAT,
        "max_tokens": 60,
        "messages": asks("What is the weather in Paris?"),
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
    }
    (call,) = litellm.completion(**asked).choices[0].message.tool_calls
    assert call.function.name == "weather"
    assert isinstance(json.loads(call.function.arguments)["city"], str)
    chunks = list(litellm.completion(**asked, stream=True))
    (built,) = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
    assert (built.function.name, built.function.arguments) == ("weather", call.function.arguments)


def check_structured_output() -> None:
    answer = litellm.completion(
        **{**CHAT, "max_tokens": 60}, messages=asks("Ada is 36 years old."), response_format=Person
    )
    Person.model_validate_json(answer.choices[0].message.content)


def check_text_completion() -> None:
    asked = {**CHAT, "model": f"text-completion-openai/{MODEL}", "max_tokens": 8}
    assert litellm.text_completion(**asked, prompt="One, two, three,").choices[0].text


def check_responses() -> None:
    answer = litellm.responses(**HERE, model=f"openai/{MODEL}", input="Say hello.", max_output_tokens=24)
    assert answer.output_text
    events = litellm.responses(
        **HERE, model=f"openai/{MODEL}", input="Say hello.", max_output_tokens=24, stream=True
    )
    assert "response.output_text.delta" in [event.type for event in events]


def check_unknown_model() -> None:
    try:
        litellm.completion(**{**CHAT, "model": "openai/nothing"}, messages=asks("Hello."))
    except litellm.NotFoundError:
        return
    raise AssertionError("an unknown model was answered")


def check_embeddings() -> None:
    answer = litellm.embedding(**HERE, model=f"openai/{checking.embedding_model()}", input=["a cat", "a dog"])
    assert [entry["index"] for entry in answer.data] == [0, 1]
    assert len(answer.data[0]["embedding"]) > 100


def check_transcription() -> None:
    with QUESTION.open("rb") as file:
        answer = litellm.transcription(**HERE, model="openai/whisper-1", file=file)
    assert "unusual" in answer.text.lower()


def check_speech() -> None:
    answer = litellm.speech(**HERE, model="openai/tts-1", voice="alloy", input="Good morning.")
    assert answer.content.startswith((b"ID3", b"\xff"))
    assert len(answer.content) > 5000


checking.run(globals())
