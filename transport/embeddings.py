"""POST /v1/embeddings: OpenAI's, on the embedding model that `embeddings.model` names.

A text is a string, or the ids of its tokens in that model's own vocabulary. A server without such a model has
the endpoint all the same, and answers that no model has the name.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag
from starlette.requests import Request
from starlette.responses import Response

from ..llm.base import Embedder, Embedding
from ..pipeline.errors import BadRequest, NotFound
from .http import Endpoint, Services, answer, connected, read_json

MOST_INPUTS = 2048
MOST_IDS = 2**17
"""Tokens of one text in a body; the model's own limit is lower, and says so."""

Text = Annotated[str, Field(min_length=1)]
Ids = Annotated[
    list[Annotated[int, Field(ge=0, lt=2**31)]], Field(fail_fast=True, min_length=1, max_length=MOST_IDS)
]
Several = Field(min_length=1, max_length=MOST_INPUTS)


def _form(given: Any) -> str:
    """Which form of input is meant, by how it begins: only its faults are told then."""
    match given:
        case [list(), *_]:
            return "ids of several"
        case [int(), *_]:
            return "ids"
        case list():
            return "several"
        case _:
            return "one"


Input = Annotated[
    Annotated[Text, Tag("one")]
    | Annotated[list[Text], Several, Tag("several")]
    | Annotated[Ids, Tag("ids")]
    | Annotated[list[Ids], Several, Tag("ids of several")],
    Discriminator(_form),
]


class EmbeddingsRequest(BaseModel):
    """input: a text, texts, the ids of one text, or of several."""

    model_config = ConfigDict(strict=True)

    model: str
    input: Input
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: str | None = None


class EmbeddingObject(BaseModel):
    """embedding: the numbers, or their little-endian float32s in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(BaseModel):
    object: Literal["list"]
    data: list[EmbeddingObject]
    model: str
    usage: EmbeddingsUsage


def endpoints(services: Services) -> list[Endpoint]:
    async def create(request: Request) -> Response:
        body = await read_json(request, EmbeddingsRequest, limit=services.settings.http.max_body_bytes)
        embedder = _embedder(services, body.model)
        dimensions = body.dimensions or embedder.dimensions
        if dimensions > embedder.dimensions:
            raise BadRequest(
                f"The model '{body.model}' has {embedder.dimensions} dimensions, not {dimensions}.",
                param="dimensions",
                code="invalid_value",
            )
        found = await connected(request, embedder.embed(texts(body.input), owner=services.new_id("embd")))
        # A million numbers take a second to write.
        return await asyncio.to_thread(_answer, body, found, dimensions)

    return [
        Endpoint(
            "POST",
            "/v1/embeddings",
            create,
            "Vectors of texts",
            body=EmbeddingsRequest,
            answer=EmbeddingsAnswer,
        )
    ]


def _embedder(services: Services, name: str) -> Embedder:
    services.models.resolve(name, "embedding")
    embedder = services.engines.embedder
    if embedder is None:
        raise NotFound("No embedding model is loaded here.", param="model", code="model_not_found")
    return embedder


def texts(given: str | Sequence[str | int | Sequence[int]]) -> Sequence[str | Sequence[int]]:
    """The texts of an input, one entry each."""
    if isinstance(given, str):
        return [given]
    several = [text for text in given if not isinstance(text, int)]
    return several or [[id for id in given if isinstance(id, int)]]


def shortened(vector: Any, dimensions: int) -> Any:
    """The first `dimensions` numbers, of length 1 again. vector: float32, shape (size,)."""
    if dimensions >= len(vector):
        return vector
    vector = vector[:dimensions]
    return vector / max(float(np.linalg.norm(vector)), 1e-12)


def _answer(body: EmbeddingsRequest, found: Sequence[Embedding], dimensions: int) -> Response:
    count = sum(embedding.tokens for embedding in found)
    data: list[dict[str, Any]] = []
    for index, embedding in enumerate(found):
        vector = shortened(embedding.vector, dimensions)
        if body.encoding_format == "base64":
            numbers: Any = base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()
        else:
            numbers = vector.tolist()
        data.append({"object": "embedding", "index": index, "embedding": numbers})
    return answer(
        {
            "object": "list",
            "data": data,
            "model": body.model,
            "usage": {"prompt_tokens": count, "total_tokens": count},
        }
    )
