"""The document of the HTTP surface: that it is valid, that it is whole, and that the server keeps to it."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from asking import ScriptedModel
from fakes import fake_engines
from openapi_spec_validator import validate
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from antiphon.pipeline.engines import Engines
from antiphon.pipeline.metrics import Metrics
from antiphon.pipeline.settings import Settings, load
from antiphon.transport import openapi, routes
from antiphon.transport.http import Endpoint, Services, answer
from antiphon.transport.models import Models
from antiphon.transport.offer import offer_of
from antiphon.transport.server import running


@asynccontextmanager
async def engines() -> AsyncIterator[Engines]:
    """Fakes with a model below the chat."""
    model = ScriptedModel()
    async with fake_engines(chat=model) as fakes:
        yield replace(fakes, text=model)


async def listed() -> list[Endpoint]:
    async with engines() as models:
        services = Services(
            settings=Settings(),
            engines=models,
            metrics=Metrics(),
            models=Models.of(Settings()),
            new_id=lambda prefix: f"{prefix}_1",
            time=lambda: 0.0,
            offer=offer_of(Settings(), models),
        )
        return list(routes.endpoints(services))


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "$ref":
                yield inner
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


async def test_the_document_is_valid_and_has_every_endpoint() -> None:
    endpoints = await listed()
    document = openapi.document(endpoints)
    validate(document)
    told = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert told == {(each.method, re.sub(r":\w+}", "}", each.path)) for each in endpoints}
    for reference in references(document):
        node = document
        for step in reference.removeprefix("#/").split("/"):
            node = node[step]
    names = [item["operationId"] for methods in document["paths"].values() for item in methods.values()]
    assert len(names) == len(set(names))


async def test_every_operation_may_answer_with_the_envelope() -> None:
    document = openapi.document(await listed())
    for path, methods in document["paths"].items():
        for operation in methods.values():
            for group in ("4XX", "5XX"):
                assert operation["responses"][group] == {"$ref": "#/components/responses/Error"}, path
            assert operation["summary"]
    error = document["components"]["schemas"]["Error"]["properties"]["error"]
    assert set(error["required"]) == {"message", "type", "param", "code"}


class Asked(BaseModel):
    """What is asked."""

    model: str
    stream: bool | None = None
    temperature: float = Field(1.0, ge=0, le=2)


class Answered(BaseModel):
    id: str


class Listed(BaseModel):
    limit: int = Field(20, ge=1, le=100)
    order: Literal["asc", "desc"] | None = None


class Form(BaseModel):
    model: str


async def handler(request: Request) -> Response:
    return answer({})


def test_what_an_operation_says() -> None:
    document = openapi.document(
        [
            Endpoint("POST", "/v1/things", handler, "Make", body=Asked, answer=Answered),
            Endpoint("GET", "/v1/things/{id:path}", handler, "Read", query=Listed, answer=Answered),
            Endpoint("POST", "/v1/forms", handler, "Form", form=Form, answer=("text/plain", "audio/mpeg")),
            Endpoint("GET", "/alive", handler, "Alive", public=True),
        ]
    )
    validate(document)
    make = document["paths"]["/v1/things"]["post"]
    (media,) = make["requestBody"]["content"]
    assert media == "application/json"
    assert set(make["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    temperature = document["components"]["schemas"]["Asked"]["properties"]["temperature"]
    assert (temperature["minimum"], temperature["maximum"]) == (0, 2)
    assert {} not in make["security"][:1]
    read = document["paths"]["/v1/things/{id}"]["get"]
    assert [(p["name"], p["in"], p["required"]) for p in read["parameters"]] == [
        ("id", "path", True), ("limit", "query", False), ("order", "query", False),
    ]  # fmt: skip
    form = document["paths"]["/v1/forms"]["post"]
    assert set(form["requestBody"]["content"]) == {"multipart/form-data"}
    assert set(form["responses"]["200"]["content"]) == {"text/plain", "audio/mpeg"}
    assert document["paths"]["/alive"]["get"]["security"] == [{}]


MODELS = {
    "/v1/audio/speech": "hibari",
    "/v1/audio/transcriptions": "whisper-base",
    "/v1/audio/translations": "whisper-base",
    "/v1/embeddings": "all-minilm-l6-v2",
}
"""What a request to these names; to the others, the language model."""


WORK = {
    "/v1/audio/speech",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/realtime/client_secrets",
    "/tokenize",
}
"""Routes where some of the requests are so right that they are answered."""


def narrowed(document: dict[str, Any]) -> dict[str, Any]:
    """The document with names that there are for `model` and `voice`; nearly all requests were 404 else."""
    for path, methods in document["paths"].items():
        for operation in methods.values():
            for media in operation.get("requestBody", {}).get("content", {}).values():
                name = media["schema"]["$ref"].rpartition("/")[2]
                schema = json.loads(json.dumps(document["components"]["schemas"][name]))
                known = {"model": MODELS.get(path, Settings().llm.model), "voice": "alloy"}
                for member in known.keys() & schema["properties"].keys():
                    optional = [] if member in schema.get("required", ()) else [None]
                    schema["properties"][member] = {"enum": [known[member], *optional]}
                media["schema"] = schema
    return document


@pytest.mark.server
@pytest.mark.slow
async def test_schemathesis_finds_no_5xx_and_nothing_outside_the_document(tmp_path: Path) -> None:
    """Requests made of the document, right and wrong ones: statuses, types and bodies are as it says."""
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(narrowed(openapi.document(await listed()))))
    quick = load(environ={}, overrides=["http.max_requests=64"])
    async with running(quick, engines=engines()) as url:
        command = [
            *(
                Path(sys.executable).parent / "schemathesis",
                "run",
                path,
                "--url",
                url.replace("ws", "http", 1),
            ),
            *("--max-examples", "6", "--request-timeout", "20", "--generation-deterministic", "--no-color"),
            # A document cannot say all that makes a request right: a known voice, a call that was made.
            *("--exclude-checks", "positive_data_acceptance"),
        ]
        process = await asyncio.create_subprocess_exec(
            *map(str, command),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=tmp_path,
        )
        try:
            said, _ = await asyncio.wait_for(process.communicate(), 300)
            async with httpx.AsyncClient(base_url=url.replace("ws", "http", 1)) as http:
                counted = (await http.get("/metrics")).text
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    text = said.decode()
    assert process.returncode == 0, text[-20_000:]
    (generated,) = re.findall(r"(\d+) generated", text)
    assert int(generated) > 200
    statuses = re.findall(r'http_requests_total{method="POST",route="(.*?)",status="(\d+)"}', counted)
    assert {route for route, status in statuses if status == "200"} >= WORK
    assert not [status for _, status in statuses if status.startswith("5") and status != "503"]
