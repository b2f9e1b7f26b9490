"""POST /v1/completions: OpenAI's legacy endpoint, the language model below the chat.

    body --completion_schema--> Asked --beside--> completions --completion_encoder--> one object, or chunks

k prompts with n choices each are k * n completions (k * best_of where the best are chosen). It is served
where the backend offers prompts as they stand.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..llm.base import Delta, TextModel, TextRequest
from ..pipeline.errors import NotFound
from ..pipeline.events import Usage
from .chat import fingerprint, identity
from .choices import beside
from .completion_encoder import CompletionChunks, CompletionWhole, Head
from .completion_schema import Asked, CompletionBody, read
from .http import Endpoint, Services, Stream, answer, connected, read_json, sse, sse_error

Pieces = AsyncIterator[tuple[int, Delta]]


def endpoints(services: Services) -> list[Endpoint]:
    return [
        Endpoint(
            "POST",
            "/v1/completions",
            Completions(services).create,
            "Continue a text",
            body=CompletionBody,
            answer=("application/json", "text/event-stream"),
        )
    ]


class Completions:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._fingerprint = fingerprint(services)

    async def create(self, request: Request) -> Response:
        services = self._services
        body = await read_json(request, CompletionBody, limit=services.settings.http.max_body_bytes)
        services.models.resolve(body.model, "chat")
        text = services.engines.text
        if text is None:
            raise NotFound(
                f"The backend '{services.settings.llm.backend}' (llm.backend) has chat completions alone.",
                param="model",
                code="model_not_found",
            )
        asked = read(body, vocabulary=text.vocabulary)
        echoed = await connected(request, _texts(text, asked)) if asked.echo else [""] * len(asked.prompts)
        head = Head(
            id=identity(services, "cmpl"),
            created=int(services.time()),
            model=body.model,
            fingerprint=self._fingerprint,
            prompts=echoed,
            n=asked.n,
            usage=asked.usage,
            logprobs=asked.logprobs,
        )
        if asked.stream:
            return Stream(
                self._streamed(text, asked, head),
                failed=sse_error,
                send_timeout=services.settings.server.send_timeout,
            )
        return answer(await connected(request, self._whole(text, asked, head)))

    async def _whole(self, text: TextModel, asked: Asked, head: Head) -> dict[str, Any]:
        encoder = CompletionWhole(head, best_of=asked.best_of)
        async with self._pieces(text, asked, head) as pieces:
            async for index, delta in pieces:
                encoder.push(index, delta)
        return encoder.answer()

    @asynccontextmanager
    async def _streamed(
        self, text: TextModel, asked: Asked, head: Head
    ) -> AsyncGenerator[AsyncIterator[bytes]]:
        async with self._pieces(text, asked, head) as pieces, aclosing(_events(head, pieces)) as events:
            yield events

    def _pieces(self, text: TextModel, asked: Asked, head: Head) -> AbstractAsyncContextManager[Pieces]:
        openers = [
            partial(_counted, text, request)
            if asked.empty
            else partial(text.complete, replace(request, owner=f"{head.id}-{number}"))
            for number, request in enumerate(asked.requests)
        ]
        return beside(openers, at_a_time=self._services.settings.llm.slots)


async def _events(head: Head, pieces: Pieces) -> AsyncGenerator[bytes]:
    encoder = CompletionChunks(head)
    async for index, delta in pieces:
        for chunk in encoder.push(index, delta):
            yield sse(chunk)
    for chunk in encoder.finish():
        yield sse(chunk)
    yield sse("[DONE]")


async def _texts(text: TextModel, asked: Asked) -> list[str]:
    """The prompts as texts."""
    return [prompt if isinstance(prompt, str) else await text.detokenize(prompt) for prompt in asked.prompts]


@asynccontextmanager
async def _counted(text: TextModel, request: TextRequest) -> AsyncGenerator[AsyncIterator[Delta]]:
    """A completion of no tokens, which needs no slot."""

    async def delta() -> AsyncGenerator[Delta]:
        prompt = request.prompt
        tokens = await text.tokenize(prompt) if isinstance(prompt, str) else prompt
        yield Delta("", "length", Usage(input_tokens=len(tokens)))

    async with aclosing(delta()) as deltas:
        yield deltas
