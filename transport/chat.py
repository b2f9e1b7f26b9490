"""POST /v1/chat/completions: OpenAI's, on the language model, with the recogniser and the voice for sound.

    body --chat_request--> Asked --beside--> n completions --chat_encoder--> one object, or chunks as SSE

Here is only who is called when: what a body means is `chat_request`'s to say, and how an answer looks
`chat_encoder`'s. Every choice is a request of its own to the engine. Nothing is sent before the engine has
begun to answer, so that what it refuses has a status.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..llm import structured
from ..llm.base import Delta
from ..pipeline.errors import BadRequest, RateLimited
from .chat_audio import EXPIRES, Speech, Transcripts, hear, speech, spoken
from .chat_encoder import ChatChunks, ChatWhole, Head, Said
from .chat_request import Asked, read, sounds
from .chat_schema import ChatBody
from .choices import beside
from .generation import seeded, tier
from .http import (
    Endpoint,
    Services,
    Stream,
    answer,
    connected,
    read_json,
    spend_audio,
    sse,
    sse_error,
)

Pieces = AsyncIterator[tuple[int, Delta | Said]]


def endpoints(services: Services) -> list[Endpoint]:
    return [
        Endpoint(
            "POST",
            "/v1/chat/completions",
            Chat(services).create,
            "Answer a conversation",
            body=ChatBody,
            answer=("application/json", "text/event-stream"),
        )
    ]


def identity(services: Services, prefix: str) -> str:
    """A fresh id as OpenAI writes those of completions, with a hyphen."""
    return services.new_id(prefix).replace("_", "-", 1)


def fingerprint(services: Services) -> str:
    """Names the model and the program: with the same seed and fingerprint, answers are the same."""
    llm = services.settings.llm
    made_of = f"{version('antiphon')} {llm.backend} {llm.model} {llm.context}"
    return "fp_" + hashlib.sha256(made_of.encode()).hexdigest()[:10]


@dataclass(frozen=True, slots=True)
class _Job:
    """One request, understood."""

    request: Request
    asked: Asked
    head: Head
    speech: Speech | None


class Chat:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._fingerprint = fingerprint(services)
        self._transcripts = Transcripts()

    async def create(self, request: Request) -> Response:
        services = self._services
        body = await read_json(request, ChatBody, limit=services.settings.http.max_body_bytes)
        services.models.resolve(body.model, "chat")
        id = identity(services, "chatcmpl")
        text, now = services.engines.text, services.time()
        recordings = sounds(body)
        understood = partial(
            read,
            body,
            vocabulary=None if text is None else text.vocabulary,
            recalled=lambda audio: self._transcripts.get(audio, now),
        )
        # What is wrong elsewhere is said before anything is listened to.
        asked = understood(heard=dict.fromkeys((sound.param for sound in recordings), ""))
        for check in asked.checks:
            await asyncio.to_thread(structured.check, check.schema, subject=check.subject, param=check.param)
        voice = None if asked.speech is None else speech(asked.speech, services)
        if recordings:
            asked = understood(heard=await connected(request, hear(services, request, recordings, id)))
        if voice is not None:
            spend_audio(request, 0)  # a key in debt has to wait
        head = Head(
            id=id,
            created=int(now),
            model=body.model,
            fingerprint=self._fingerprint,
            n=asked.n,
            usage=asked.usage,
            logprobs=asked.logprobs,
            legacy=asked.legacy,
            customs=asked.customs,
            tier=tier(body.service_tier),
            metadata=body.metadata,
            audio=() if voice is None else tuple(services.new_id("audio") for _ in range(asked.n)),
            expires_at=int(now) + EXPIRES,
        )
        job = _Job(request, asked, head, voice)
        if asked.stream:
            return Stream(
                self._streamed(job), failed=sse_error, send_timeout=services.settings.server.send_timeout
            )
        return answer(await connected(request, self._whole(job)))

    async def _whole(self, job: _Job) -> dict[str, Any]:
        encoder = ChatWhole(job.head)
        async with self._pieces(job) as pieces:
            async for index, piece in pieces:
                encoder.push(index, piece)
        return encoder.answer(reasoning=await self._tokens(encoder.thoughts))

    @asynccontextmanager
    async def _streamed(self, job: _Job) -> AsyncGenerator[AsyncIterator[bytes]]:
        async with self._pieces(job) as pieces, aclosing(self._events(job.head, pieces)) as events:
            yield events

    async def _events(self, head: Head, pieces: Pieces) -> AsyncGenerator[bytes]:
        encoder = ChatChunks(head)
        async for index, piece in pieces:
            if chunks := encoder.push(index, piece):
                yield b"".join(map(sse, chunks))
        for chunk in encoder.finish(reasoning=await self._tokens(encoder.thoughts) if head.usage else 0):
            yield sse(chunk)
        yield sse("[DONE]")

    async def _tokens(self, thoughts: str) -> int:
        """How many tokens thoughts had, read again."""
        text = self._services.engines.text
        return len(await text.tokenize(thoughts, special=False)) if thoughts and text is not None else 0

    # --- the engines ------------------------------------------------------------------------------------

    def _pieces(self, job: _Job) -> AbstractAsyncContextManager[Pieces]:
        openers = [partial(self._choice, job, index) for index in range(job.head.n)]
        return beside(openers, at_a_time=self._services.settings.llm.slots)

    @asynccontextmanager
    async def _choice(self, job: _Job, index: int) -> AsyncGenerator[AsyncIterator[Delta | Said]]:
        engines, asked, owner = self._services.engines, job.asked, f"{job.head.id}-{index}"
        sampling = replace(asked.request.sampling, seed=seeded(asked.request.sampling.seed, index))
        try:
            async with engines.chat.stream(replace(asked.request, owner=owner, sampling=sampling)) as deltas:
                if job.speech is None:
                    yield deltas
                    return
                async with spoken(engines, deltas, job.speech, owner) as pieces:
                    yield self._counted(job, index, pieces)
        except BadRequest as error:
            # The engine knows one name for what came by several.
            if error.param == "response_format":
                error.param = asked.form
            elif error.param == "tools" and asked.legacy:
                error.param = "functions"
            raise

    async def _counted(
        self, job: _Job, index: int, pieces: AsyncIterator[Delta | Said]
    ) -> AsyncGenerator[Delta | Said]:
        """The pieces of a spoken choice. Its sound is counted and what it said is kept, however it ends."""
        seconds, transcript = 0.0, ""
        try:
            async for piece in pieces:
                if isinstance(piece, Said):
                    seconds += piece.seconds
                    transcript += piece.text
                yield piece
        finally:
            self._transcripts.keep(job.head.audio[index], transcript, job.head.expires_at)
            with suppress(RateLimited):  # what began is finished; what comes next has to wait
                spend_audio(job.request, seconds)
