"""/v1/responses: OpenAI's, on the language model. Who is called when, and what is kept.

    body --responses_request--> Asked --ChatModel--> deltas --responses_encoder--> events, or one object
                  ▲                                                    │
                  └──────────────── responses_store ◀──────────────────┘

Whoever waits for an answer, with a stream or without, ends it by leaving. What runs in the background is ended
by its `cancel`, by `delete` and by the server's end, and its events can be read again from any of them on.
Nothing is sent before the engine has begun to answer, so that what it refuses has a status.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace

from starlette.requests import Request
from starlette.responses import Response

from ..llm import structured
from ..llm.base import ChatRequest, Delta, TextModel
from ..pipeline.errors import AntiphonError, BadRequest, EngineFailed, NotFound
from ..pipeline.logs import where
from . import responses_schema as schema
from .auth import Client
from .http import (
    CLIENT,
    Endpoint,
    Services,
    Stream,
    answer,
    connected,
    read_json,
    read_query,
    sse,
)
from .responses_background import Track
from .responses_encoder import ResponseEncoder, error_event, opening
from .responses_request import Asked, Json, own_items, read, refused, shorter
from .responses_store import Bounds, Kept, Store

log = logging.getLogger("antiphon.server")

EVENTS = ("application/json", "text/event-stream")
UNFINISHED = ("queued", "in_progress")


def endpoints(services: Services) -> list[Endpoint]:
    one = "/v1/responses/{id}"
    served = Responses(services)
    return [
        Endpoint(
            "POST",
            "/v1/responses",
            served.create,
            "Answer, and keep the answer",
            body=schema.ResponsesBody,
            answer=schema.ResponseObject,
        ),
        Endpoint(
            "POST",
            "/v1/responses/input_tokens",
            served.count,
            "The tokens of a response's input",
            body=schema.CountBody,
            answer=schema.InputTokens,
        ),
        Endpoint("GET", one, served.retrieve, "A response", query=schema.RetrieveQuery, answer=EVENTS),
        Endpoint("DELETE", one, served.delete, "Forget a response", answer=schema.Deleted),
        Endpoint(
            "POST", f"{one}/cancel", served.cancel, "End one in the background", answer=schema.ResponseObject
        ),
        Endpoint(
            "GET",
            f"{one}/input_items",
            served.input_items,
            "What a response answered",
            query=schema.ItemsQuery,
            answer=schema.ItemList,
        ),
    ]


@dataclass(frozen=True, slots=True)
class _Job:
    """One response that is made. kept: what will be kept of it. store: whether it is."""

    request: ChatRequest
    kept: Kept
    encoder: ResponseEncoder
    store: bool


class Responses:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._background = services.background
        bounds = services.settings.responses
        self._store = Store(Bounds(bounds.max_stored, bounds.max_stored_bytes, bounds.max_age))

    # --- endpoints ----------------------------------------------------------------------------------------

    async def create(self, request: Request) -> Response:
        services = self._services
        body = await read_json(request, schema.ResponsesBody, limit=services.settings.http.max_body_bytes)
        services.models.resolve(body.model, "chat")
        if body.background and body.store is False:
            raise refused("background", "A response in the background is kept: 'store' cannot be false.")
        now = services.time()
        asked, kept = self._read(request, body)
        await _checked(asked)
        if body.truncation == "auto":
            fitting = self._fitting(asked.request)
            asked = replace(asked, request=await connected(request, fitting))
        document = opening(body, services.new_id("resp"), int(now))
        encoder = ResponseEncoder(
            document,
            new_id=services.new_id,
            customs=asked.customs,
            logprobs=asked.request.limits.logprobs is not None,
        )
        kept.document = encoder.document
        job = _Job(replace(asked.request, owner=kept.id), kept, encoder, body.store is not False)
        if body.background:
            return self._start(job, stream=bool(body.stream))
        if not body.stream:
            return answer(await connected(request, self._whole(job)))
        return Stream(
            self._streamed(job),
            failed=lambda error: sse(error_event(error, encoder.events), "error"),
            send_timeout=services.settings.server.send_timeout,
        )

    async def count(self, request: Request) -> Response:
        services = self._services
        body = await read_json(request, schema.CountBody, limit=services.settings.http.max_body_bytes)
        if body.model is not None:
            services.models.resolve(body.model, "chat")
        text = services.engines.text
        if text is None:
            raise NotFound("The language model of this server does not show its tokens.", code="unsupported")
        asked, _ = self._read(request, body)
        with _named():
            tokens = await connected(request, _length(text, asked.request))
        return answer(schema.InputTokens(object="response.input_tokens", input_tokens=tokens))

    async def retrieve(self, request: Request) -> Response:
        query = read_query(request, schema.RetrieveQuery)
        kept = self._find(request)
        if not query.stream:
            return answer(kept.document)
        if not kept.events:
            raise refused(
                "stream", "Only a response that was made in the background has events to read again."
            )
        track = self._background.track(kept.id)
        if track is None:
            track = Track(kept.events)
            track.end()
        after = -1 if query.starting_after is None else query.starting_after
        return self._following(track, after)

    async def delete(self, request: Request) -> Response:
        kept = self._find(request)
        await self._background.cancel(kept.id)
        self._store.remove(kept)
        return answer({"id": kept.id, "object": "response", "deleted": True})

    async def cancel(self, request: Request) -> Response:
        kept = self._find(request)
        if not kept.document["background"]:
            raise BadRequest(
                "Only a response that was made in the background can be cancelled; to end another one, leave.",
                param="response_id",
                code="invalid_value",
            )
        await self._background.cancel(kept.id)
        return answer(kept.document)

    async def input_items(self, request: Request) -> Response:
        query = read_query(request, schema.ItemsQuery)
        items = list(self._find(request).items)
        if query.order == "desc":
            items.reverse()
        if query.after is not None:
            ids = [item["id"] for item in items]
            if query.after not in ids:
                raise refused("after", "No item of this response has this id.")
            items = items[ids.index(query.after) + 1 :]
        page = items[: query.limit]
        return answer(
            {
                "object": "list",
                "data": page,
                "first_id": page[0]["id"] if page else "",
                "last_id": page[-1]["id"] if page else "",
                "has_more": len(items) > len(page),
            }
        )

    # --- what is asked ------------------------------------------------------------------------------------

    def _read(self, request: Request, body: schema.ContextBody) -> tuple[Asked, Kept]:
        """What a body asks, and what is to be kept of it but the response. Raises BadRequest."""
        key, now, text = _key(request), self._services.time(), self._services.engines.text
        before = self._before(key, body.previous_response_id, now)
        own = own_items(body, self._services.new_id, lambda id: self._store.item(key, id, now))
        asked = read(body, before, own, vocabulary=None if text is None else text.vocabulary)
        return asked, Kept(key, {}, own, before, now)

    def _before(self, key: str, id: str | None, now: float) -> tuple[Json, ...]:
        if id is None:
            return ()
        previous = self._store.get(key, id, now)
        if previous is None:
            raise refused(
                "previous_response_id",
                f"Previous response with id '{id:.100}' not found.",
                "previous_response_not_found",
            )
        if previous.document["status"] in UNFINISHED:
            raise refused("previous_response_id", "The previous response is not finished.")
        return previous.conversation

    def _find(self, request: Request) -> Kept:
        """The response of a path. Raises NotFound, for those of other keys too."""
        id: str = request.path_params["id"]
        kept = self._store.get(_key(request), id, self._services.time())
        if kept is None:
            raise NotFound(f"Response with id '{id:.100}' not found.", param="response_id")
        return kept

    async def _fitting(self, asked: ChatRequest) -> ChatRequest:
        """Without as many of the oldest turns as it takes to fit the context with room for an answer."""
        text = self._services.engines.text
        if text is None:
            return asked
        wanted = asked.limits.max_tokens
        room = text.context - (text.context // 4 if wanted is None else min(wanted, text.context // 2))
        choices = [asked.messages, *shorter(asked.messages)]
        low, high = 0, len(choices) - 1
        with _named():
            # Each is shorter than the one before.
            while low < high:
                middle = (low + high) // 2
                if await _length(text, replace(asked, messages=choices[middle])) <= room:
                    high = middle
                else:
                    low = middle + 1
        return replace(asked, messages=choices[low])

    # --- answers ------------------------------------------------------------------------------------------

    async def _whole(self, job: _Job) -> Json:
        async with self._engine(job) as deltas:
            async for _ in self._events(job, deltas):
                pass
        return job.encoder.document

    @asynccontextmanager
    async def _streamed(self, job: _Job) -> AsyncGenerator[AsyncIterator[bytes]]:
        async with self._engine(job) as deltas, aclosing(self._sent(job, deltas)) as frames:
            yield frames

    async def _sent(self, job: _Job, deltas: AsyncIterator[Delta]) -> AsyncGenerator[bytes]:
        """Raises what is wrong before the first piece, and says in events what is wrong after it."""
        events = self._events(job, deltas)
        first = await anext(events)
        yield _joined(first)
        try:
            async for some in events:
                if some:
                    yield _joined(some)
        except Exception as error:
            failed = job.encoder.fail(_ours(error))
            self._keep(job)
            yield _joined(failed)

    async def _events(self, job: _Job, deltas: AsyncIterator[Delta]) -> AsyncGenerator[Sequence[Json]]:
        """The events of a response in the pieces they come in. It is kept before its last one is told."""
        encoder, begun = job.encoder, False
        async for delta in deltas:
            yield [*([] if begun else encoder.begin()), *encoder.push(delta)]
            begun = True
        events = [] if begun else encoder.begin()
        reasoning = await self._tokens(encoder.thoughts)
        events += encoder.finish(self._services.time(), reasoning=reasoning)
        self._keep(job)
        yield events

    def _keep(self, job: _Job) -> None:
        job.kept.document = job.encoder.document
        if job.store:
            self._store.put(job.kept, self._services.time())

    async def _tokens(self, thoughts: str) -> int:
        """How many tokens thoughts had, read again."""
        text = self._services.engines.text
        return len(await text.tokenize(thoughts, special=False)) if thoughts and text is not None else 0

    @asynccontextmanager
    async def _engine(self, job: _Job) -> AsyncGenerator[AsyncIterator[Delta]]:
        with _named():
            async with self._services.engines.chat.stream(job.request) as deltas:
                yield deltas

    # --- in the background --------------------------------------------------------------------------------

    def _start(self, job: _Job, *, stream: bool) -> Response:
        kept, encoder = job.kept, job.encoder
        track = Track(kept.events)

        def ended() -> None:
            kept.running = False
            if kept.document["status"] in UNFINISHED:
                track.publish(_frames(encoder.cancel()))
            self._keep(job)

        async def work() -> None:
            try:
                await self._run(job, track)
            except Exception as error:
                track.publish(_frames(encoder.fail(_ours(error))))
                kept.document = encoder.document

        self._background.start(kept.id, track, work, ended)
        kept.running = True
        track.publish(_frames(encoder.queue()))
        self._keep(job)
        return self._following(track, -1) if stream else answer(kept.document)

    async def _run(self, job: _Job, track: Track) -> None:
        track.publish(_frames(job.encoder.begin()))
        job.kept.document = job.encoder.document
        async with self._engine(job) as deltas:
            async for delta in deltas:
                track.publish(_frames(job.encoder.push(delta)))
            reasoning = await self._tokens(job.encoder.thoughts)
            last = job.encoder.finish(self._services.time(), reasoning=reasoning)
            job.kept.document = job.encoder.document
            track.publish(_frames(last))

    def _following(self, track: Track, after: int) -> Response:
        """The events of a response in the background; leaving them ends nothing."""

        @asynccontextmanager
        async def followed() -> AsyncGenerator[AsyncIterator[bytes]]:
            async with aclosing(track.follow(after)) as events:
                yield events

        return Stream(followed(), send_timeout=self._services.settings.server.send_timeout)


def _key(request: Request) -> str:
    """Whose responses a request sees."""
    client: Client | None = request.scope.get(CLIENT)
    return "" if client is None else client.key


async def _checked(asked: Asked) -> None:
    """Raises BadRequest for a schema that cannot be held to."""
    for check in asked.checks:
        await asyncio.to_thread(structured.check, check.schema, subject=check.subject, param=check.param)


async def _length(text: TextModel, asked: ChatRequest) -> int:
    """Tokens of a prompt."""
    return len(await text.tokenize(await text.render(asked)))


@contextmanager
def _named() -> Generator[None]:
    """An engine's refusals, of members as they are called here."""
    try:
        yield
    except BadRequest as error:
        error.param = {"messages": "input", "response_format": "text.format"}.get(
            error.param or "", error.param
        )
        raise


def _ours(error: Exception) -> AntiphonError:
    if isinstance(error, AntiphonError):
        return error
    log.error("a response failed: %s", where(error))
    return EngineFailed("The server failed; its log has the reason.", code="internal_error")


def _frames(events: Iterable[Json]) -> list[bytes]:
    return [sse(event, event["type"]) for event in events]


def _joined(events: Iterable[Json]) -> bytes:
    return b"".join(_frames(events))
