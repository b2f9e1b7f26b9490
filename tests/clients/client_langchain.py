"""langchain-openai."""

import checking
from checking import BASE_URL, KEY
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

MODEL = checking.chat_model()


class Person(BaseModel):
    """A person."""

    name: str
    age: int = Field(ge=0, le=150)


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"It is sunny in {city}."


def chat(**members) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=BASE_URL, api_key=KEY, model=MODEL, temperature=0, **{"max_tokens": 24, **members}
    )


def check_chat() -> None:
    answer = chat().invoke([("system", "Be brief."), ("user", "Say hello.")])
    assert answer.content
    assert answer.usage_metadata["output_tokens"] > 0
    assert answer.response_metadata["finish_reason"] in ("stop", "length")


def check_stream() -> None:
    whole = chat().invoke("Say hello.").content
    chunks = list(chat(stream_usage=True).stream("Say hello."))
    assert "".join(chunk.content for chunk in chunks) == whole
    assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) > 0


async def check_async_stream() -> None:
    assert "".join([chunk.content async for chunk in chat().astream("Count to three.")])


def check_tools() -> None:
    model = chat(max_tokens=60).bind_tools([weather], tool_choice="weather")
    asked = "What is the weather in Paris?"
    (call,) = model.invoke(asked).tool_calls
    assert call["name"] == "weather"
    assert isinstance(call["args"]["city"], str)
    chunks = list(model.stream(asked))
    joined = chunks[0]
    for chunk in chunks[1:]:
        joined = joined + chunk
    assert [(c["name"], c["args"]) for c in joined.tool_calls] == [("weather", call["args"])]


def check_tool_results() -> None:
    asked = chat(max_tokens=60).bind_tools([weather], tool_choice="any").invoke("The weather in Rome?")
    results = [weather.invoke(call) for call in asked.tool_calls]
    assert chat().invoke([("user", "The weather in Rome?"), asked, *results]).content


def check_structured_output() -> None:
    for method in ("json_schema", "function_calling"):
        model = chat(max_tokens=60).with_structured_output(Person, method=method)
        assert isinstance(model.invoke("Ada is 36 years old."), Person), method


def check_responses() -> None:
    model = chat(use_responses_api=True)
    assert model.invoke("Say hello.").text
    assert "".join(chunk.text for chunk in model.stream("Say hello."))


def check_embeddings() -> None:
    # It counts tokens with a vocabulary that it would download first.
    model = OpenAIEmbeddings(
        base_url=BASE_URL,
        api_key=KEY,
        model=checking.embedding_model(),
        check_embedding_ctx_length=False,
    )
    cat, kitten, law = model.embed_documents(["a cat", "a kitten", "the tax law of 1913"])
    assert len(cat) > 100
    assert dot(cat, kitten) > dot(cat, law)


def dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


checking.run(globals())
