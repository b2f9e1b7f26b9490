"""POST /v1/embeddings: what a body may be and how it is answered; the real model behind a real server."""

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from asking import Answer, ask
from asking import services as chat_services
from fakes import fake_engines
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from antiphon.llm.base import Embedding
from antiphon.pipeline.settings import load
from antiphon.transport.embeddings import endpoints, shortened, texts
from antiphon.transport.http import Endpoint
from antiphon.transport.models import Models, Served
from antiphon.transport.server import running


class FakeEmbedder:
    """A text's vector points to its length; `given` is all it was asked, `hold` keeps it from answering."""

    name = "little"
    dimensions = 4

    def __init__(self) -> None:
        self.given: list[str | Sequence[int]] = []
        self.asked = asyncio.Event()
        self.hold = asyncio.Event()
        self.hold.set()
        self.left = False

    async def embed(self, texts: Sequence[str | Sequence[int]], *, owner: str) -> Sequence[Embedding]:
        self.given += texts
        self.asked.set()
        try:
            await self.hold.wait()
        except asyncio.CancelledError:
            self.left = True
            raise
        vectors = [np.array([len(text), 1, 2, 1], np.float32) for text in texts]
        return [Embedding(v / np.linalg.norm(v), len(text)) for v, text in zip(vectors, texts, strict=True)]


@asynccontextmanager
async def served(embedder: FakeEmbedder | None) -> AsyncIterator[Endpoint]:
    async with fake_engines() as engines:
        services = chat_services(replace(engines, embedder=embedder))
        known = () if embedder is None else (Served("little", "embedding"),)
        [endpoint] = endpoints(replace(services, models=Models((Served("talker", "chat"), *known))))
        yield endpoint


async def asked(embedder: FakeEmbedder | None, **members: Any) -> Answer:
    async with served(embedder) as endpoint:
        return await ask(endpoint, {"model": "little", "input": "Hello.", **members})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("one", ["one"]),
        (["one", "three"], ["one", "three"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
async def test_a18_every_form_of_input(given: Any, meant: list[Any]) -> None:
    assert texts(given) == meant
    embedder = FakeEmbedder()
    answer = await asked(embedder, input=given)
    assert answer.status == 200
    assert embedder.given == meant
    assert [entry["index"] for entry in answer.json["data"]] == list(range(len(meant)))
    assert answer.json["usage"] == dict.fromkeys(("prompt_tokens", "total_tokens"), sum(map(len, meant)))
    assert answer.json["model"] == "little"


async def test_a18_base64_is_the_same_numbers() -> None:
    plain = await asked(FakeEmbedder(), input=["a", "bcd"])
    packed = await asked(FakeEmbedder(), input=["a", "bcd"], encoding_format="base64")
    for one, other in zip(plain.json["data"], packed.json["data"], strict=True):
        assert np.array(one["embedding"], "<f4").tobytes() == base64.b64decode(other["embedding"])


async def test_fewer_dimensions_are_of_length_one_again() -> None:
    answer = await asked(FakeEmbedder(), dimensions=2)
    [entry] = answer.json["data"]
    assert np.linalg.norm(entry["embedding"]) == pytest.approx(1)
    assert len(entry["embedding"]) == 2
    assert not np.isnan(shortened(np.array([0, 0, 1], np.float32), 2)).any()
    answer = await asked(FakeEmbedder(), dimensions=5)
    assert (answer.status, answer.error["param"]) == (400, "dimensions")


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["x", ""]}, "input[1]"),
        ({"input": [[1], []]}, "input[1]"),
        ({"input": [-1]}, "input[0]"),
        ({"input": ["x"] * 2049}, "input"),
        ({"input": 7}, "input"),
        ({"dimensions": 0}, "dimensions"),
        ({"encoding_format": "int8"}, "encoding_format"),
    ],
)
async def test_refusals_name_the_member(members: Any, param: str) -> None:
    embedder = FakeEmbedder()
    answer = await asked(embedder, **members)
    assert (answer.status, answer.error["param"]) == (400, param)
    assert embedder.given == []


async def test_a_server_without_such_a_model() -> None:
    for name in ("text-embedding-3-small", "little"):
        answer = await asked(None, model=name)
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    assert (await asked(FakeEmbedder(), model="talker")).status == 400
    assert (await asked(FakeEmbedder(), model="text-embedding-ada-002")).status == 200


async def test_a16_a_client_that_leaves_stops_it() -> None:
    embedder = FakeEmbedder()
    embedder.hold.clear()
    async with served(embedder) as endpoint:
        answer = await ask(endpoint, {"model": "little", "input": "x"}, leave=embedder.asked.wait)
    assert embedder.left
    assert answer.status == 0


@pytest.mark.model
@pytest.mark.server
async def test_a18_the_openai_package_against_the_real_model() -> None:
    settings = load(environ={}, overrides=["embeddings.model=all-minilm-l6-v2"])
    setup = {"api_key": "x", "max_retries": 0}
    async with (
        running(settings) as url,
        AsyncOpenAI(base_url=url.replace("ws", "http", 1) + "/v1", **setup) as client,
        # A strict client refuses the base64 that it asks for itself where no format is named.
        AsyncOpenAI(base_url=client.base_url, **setup, _strict_response_validation=True) as strict,
    ):
        assert "all-minilm-l6-v2" in [model.id async for model in client.models.list()]
        given = ["a cat", "a kitten", "the tax law of 1913"]
        packed = await client.embeddings.create(model="all-minilm-l6-v2", input=given)
        plain = await strict.embeddings.create(
            model="text-embedding-3-small", input=given, encoding_format="float", dimensions=384
        )
        cat, kitten, law = (np.array(entry.embedding) for entry in packed.data)
        assert cat @ kitten > cat @ law
        for one, other in zip(packed.data, plain.data, strict=True):
            assert one.embedding == pytest.approx(other.embedding, abs=1e-7)
        assert packed.usage == plain.usage
        assert packed.usage.total_tokens == 15
        with pytest.raises(BadRequestError) as caught:
            await client.embeddings.create(model="all-minilm-l6-v2", input="word " * 600)
        assert caught.value.param == "input"
        with pytest.raises(NotFoundError):
            await client.embeddings.create(model="bge-m3", input="x")
