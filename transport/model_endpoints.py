"""GET /v1/models and /v1/models/{id}: the models of this server, as OpenAI lists its own.

The list has each model once, and the names that `llm.aliases` adds. OpenAI's names for the recogniser and the
voice are not listed, but may be asked for one by one, and are good in every request.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from .http import Endpoint, Services, answer


class ModelObject(BaseModel):
    """created: when this server began to serve it, in Unix seconds."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelObject]


def endpoints(services: Services) -> list[Endpoint]:
    created = int(services.time())

    def described(name: str) -> ModelObject:
        return ModelObject(id=name, object="model", created=created, owned_by="antiphon")

    async def listed(request: Request) -> Response:
        return answer(ModelList(object="list", data=[described(name) for name in services.models.listed()]))

    async def one(request: Request) -> Response:
        name: str = request.path_params["id"]
        services.models.get(name)
        return answer(described(name))

    return [
        Endpoint("GET", "/v1/models", listed, "List the models", answer=ModelList),
        Endpoint("GET", "/v1/models/{id:path}", one, "One model", answer=ModelObject),
    ]
