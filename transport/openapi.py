"""GET /openapi.json: the HTTP surface as an OpenAPI 3.1 document, made of the same endpoints as the router.

Nothing is described by hand but the envelope: bodies, forms and answers are the models that read and write
them. A request that asks for a stream is answered as events instead of the JSON that stands here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response

from .http import Endpoint, Json, answer

PATH = "/openapi.json"
REF = "#/components/schemas/{model}"
VARIABLE = re.compile(r"{(\w+)(:\w+)?}")

EVENTS = "text/event-stream"

ENVELOPE: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}

Mode = Literal["validation", "serialization"]
Schemas = Mapping[tuple[type[BaseModel], Mode], Json]


def endpoint(listed: Sequence[Endpoint]) -> Endpoint:
    """Serves the document of `listed`, and of itself. It is made when it is first asked for."""
    made: list[Json] = []
    own = Endpoint("GET", PATH, lambda request: serve(request), "This document", public=True)

    async def serve(request: Request) -> Response:
        if not made:
            made.append(await asyncio.to_thread(document, [*listed, own]))
        return answer(made[0])

    return own


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """The document of these endpoints."""
    models: list[tuple[type[BaseModel], Mode]] = []
    for each in endpoints:
        for model in (each.body, each.form, each.query):
            if model is not None:
                models.append((model, "validation"))
        if isinstance(each.answer, type):
            models.append((each.answer, "serialization"))
    schemas, definitions = models_json_schema(list(dict.fromkeys(models)), ref_template=REF)
    paths: dict[str, dict[str, Any]] = {}
    for each in endpoints:
        path = VARIABLE.sub(r"{\1}", each.path)
        paths.setdefault(path, {})[each.method.lower()] = _operation(
            each, lambda model, mode: schemas[model, mode], definitions.get("$defs", {})
        )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Antiphon",
            "version": version("antiphon"),
            "summary": "OpenAI's HTTP API on the models of a voice service.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": {**definitions.get("$defs", {}), "Error": ENVELOPE},
            "responses": {
                "Error": {
                    "description": "What is wrong, and whose fault it is",
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
                }
            },
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "api-key"},
            },
        },
    }


def _operation(
    each: Endpoint,
    schema: Callable[[type[BaseModel], Mode], Json],
    definitions: Mapping[str, Any],
) -> dict[str, Any]:
    words = re.findall(r"\w+", VARIABLE.sub(r"\1", each.path))
    operation: dict[str, Any] = {
        "operationId": "_".join([each.method.lower(), *words]),
        "summary": each.summary,
        "tags": [words[1] if words[0] == "v1" else "server"],
        "security": [{}] if each.public else [{"key": []}, {"header": []}, {}],
        "responses": {
            "200": {"description": "As asked", **_content(each, schema)},
            "4XX": {"$ref": "#/components/responses/Error"},
            "5XX": {"$ref": "#/components/responses/Error"},
        },
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name, _ in VARIABLE.findall(each.path)
    ]
    if each.query is not None:
        parameters += _query(schema(each.query, "validation"), definitions)
    if parameters:
        operation["parameters"] = parameters
    content = {
        media: {"schema": schema(model, "validation")}
        for media, model in (("application/json", each.body), ("multipart/form-data", each.form))
        if model is not None
    }
    if content:
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _content(each: Endpoint, schema: Callable[[type[BaseModel], Mode], Json]) -> Json:
    match each.answer:
        case None:
            return {"content": {"application/json": {"schema": {"type": "object"}}}}
        case tuple() as media:
            return {"content": {name.partition(";")[0]: {} for name in media}}
        case model:
            content: dict[str, Any] = {"application/json": {"schema": schema(model, "serialization")}}
            asked = each.body or each.form
            if asked is not None and "stream" in asked.model_fields:
                content[EVENTS] = {}
            return {"content": content}


def _query(schema: Json, definitions: Mapping[str, Any]) -> list[Json]:
    """The members of a query's model as parameters."""
    whole: Json = definitions[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    required = whole.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": member}
        for name, member in whole.get("properties", {}).items()
    ]
