"""The frame of the HTTP surface: what every endpoint is made of, and nothing of any one of them.

    Endpoint     a route with its models, of which both the router and the OpenAPI document are made
    Services     what endpoints are given
    read_json    a request body as its model, or a BadRequest that names the member
    read_query   the same of what stands behind the "?"
    connected    run work only as long as the client is there
    Stream       a body sent as it is made; an error before its first piece is still a status
    sse          one server-sent event
    spend_audio  count sound against what the client's key may use

A client that goes away cancels what runs for it: `connected` and `Stream` watch the socket while they wait
for the engines, and leaving an engine's context frees its slot.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..pipeline.engines import Engines
from ..pipeline.errors import AntiphonError, BadRequest, EngineFailed, TooLarge
from ..pipeline.logs import where
from ..pipeline.metrics import Metrics
from ..pipeline.settings import Settings
from .auth import Client, EphemeralSecrets
from .models import Models
from .responses_background import Background
from .session_object import Offer

log = logging.getLogger("antiphon.server")

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)
Json = Mapping[str, Any]

SSE_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
EVENT_STREAM = "text/event-stream; charset=utf-8"

LONG_BODY = 2**17
"""Bytes; a longer body is parsed on a thread, so that nobody else waits for it."""

DEEPEST = 128
"""Objects and arrays within each other; no request needs a tenth of it."""

LONGEST_NAME, LONGEST_SAID = 100, 1000
"""Characters of a client's own words in an error: of a member's name, of the whole message."""

SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Half of a character, as JSON escapes it; alone it is no text, and nothing further in could take it."""


MOST_PARTS = 16_384
"""Objects and arrays in a body."""
MOST_MEMBERS = 8192
"""Of one object in a body."""


class ClientGone(Exception):
    """The client closed the connection; there is nobody to answer."""


@dataclass(frozen=True, slots=True)
class Services:
    """What endpoints are given.

    new_id: "chatcmpl" to "chatcmpl_…"; time: Unix seconds. draining: the server is about to stop.
    offer: what a Realtime session is given. secrets: the ephemeral ones that are good. background: runs the
    responses that nobody waits for.
    """

    settings: Settings
    engines: Engines
    metrics: Metrics
    models: Models
    new_id: Callable[[str], str]
    time: Callable[[], float]
    draining: Callable[[], bool] = lambda: False
    offer: Offer | None = None
    secrets: EphemeralSecrets = field(default_factory=EphemeralSecrets)
    background: Background = field(default_factory=Background)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One route.

    path: as Starlette's, `{id}` a segment, `{id:path}` the rest. query: the model of its query.
    body: the model of its JSON body. form: the model of its multipart form, where that is what it takes.
    answer: the model of its JSON answer, or its media types. public: needs no API key.
    """

    method: Literal["GET", "POST", "DELETE"]
    path: str
    handler: Callable[[Request], Awaitable[Response]]
    summary: str
    body: type[BaseModel] | None = None
    form: type[BaseModel] | None = None
    answer: type[BaseModel] | tuple[str, ...] | None = None
    public: bool = False
    query: type[BaseModel] | None = None


def answer(body: Json | BaseModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer. Of a model, members that were not set are left out."""
    if isinstance(body, BaseModel):
        body = body.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return Response(_dumped(body), status, headers, "application/json")


def refused(error: AntiphonError, headers: Mapping[str, str] | None = None) -> Response:
    """An error in OpenAI's envelope, with its status."""
    return answer({"error": error.body()}, error.status, {**error.headers(), **(headers or {})})


CLIENT = "antiphon.client"
"""Where a request's scope has its Client."""


def client_of(request: Request) -> Client:
    """Who asks. A request that passed no gate, as in a test of one endpoint, has none: KeyError."""
    return request.scope[CLIENT]


def spend_audio(request: Request, seconds: float) -> None:
    """Count sound that a request heard or spoke. Raises RateLimited when its key has used up what it may."""
    client: Client | None = request.scope.get(CLIENT)
    if client is not None:
        client.spend_audio(seconds)


# --- requests -------------------------------------------------------------------------------------------


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. Raises TooLarge as soon as it exceeds `limit` bytes, ClientGone."""
    pieces: list[bytes] = []
    size = 0
    try:
        async for piece in request.stream():
            size += len(piece)
            if size > limit:
                raise TooLarge(f"The body is larger than {limit} bytes, the most that is read here.")
            pieces.append(piece)
    except ClientDisconnect as error:
        raise ClientGone from error
    return b"".join(pieces)


async def read_json(request: Request, model: type[Model], *, limit: int) -> Model:
    """The body as a model. Raises BadRequest that names the member, TooLarge, ClientGone."""
    body = await read_body(request, limit)
    if len(body) > LONG_BODY:
        return await asyncio.to_thread(_parsed, body, model)
    return _parsed(body, model)


def _parsed(body: bytes, model: type[Model]) -> Model:
    try:
        value = json.loads(body, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise BadRequest(
            "The body is not valid JSON." if body else "The body is empty; it must be JSON.",
            code="invalid_json",
        ) from error
    if body.count(b"[") + body.count(b"{") > DEEPEST and _deeper(value, DEEPEST):
        raise BadRequest(
            f"The body is nested too deeply: at most {DEEPEST} levels are read.", code="invalid_json"
        )
    if SURROGATE.search(body) and not _sendable(value):
        raise BadRequest("The body is not valid JSON: it holds half a surrogate pair.", code="invalid_json")
    return validated(value, model)


def read_query(request: Request, model: type[Model]) -> Model:
    """The query as a model, of text: its fields are read from strings. `name[]` is `name`, and a list.

    Raises BadRequest that names the parameter.
    """
    given: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name.endswith("[]"):
            given.setdefault(name.removesuffix("[]"), []).append(value)
        else:
            given[name] = value
    try:
        return model.model_validate(given, strict=False)
    except ValidationError as error:
        raise refusal(error, given) from error


def validated(value: Any, model: type[Model]) -> Model:
    """A JSON value as a model. Raises BadRequest that names the member."""
    if not isinstance(value, dict):
        raise BadRequest("The body must be a JSON object.", code="invalid_type")
    _measured(value)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise refusal(error, value) from error
    except RecursionError as error:
        raise BadRequest("The body is nested too deeply.") from error


def _measured(value: Any) -> None:
    """Raises BadRequest for more than anybody means: each wrong member of a body is a fault that is gathered, and
    a megabyte of them takes a gigabyte.
    """
    parts = 0
    left: list[Any] = [value]
    while left:
        part = cast("dict[str, Any] | list[Any]", left.pop())
        parts += 1
        if isinstance(part, dict) and len(part) > MOST_MEMBERS:
            raise BadRequest(
                f"An object of the body has more than {MOST_MEMBERS} members.", code="invalid_value"
            )
        left += [
            member
            for member in (part.values() if isinstance(part, dict) else part)
            if isinstance(member, dict | list)
        ]
        if parts + len(left) > MOST_PARTS:
            raise BadRequest(f"The body has more than {MOST_PARTS} objects and arrays.", code="invalid_value")


def refusal(error: ValidationError, value: Any) -> BadRequest:
    """What is wrong with a body, as OpenAI says it: the first fault, `param` its path."""
    faults = error.errors(include_url=False, include_input=False)
    paths = [_path(fault, value) for fault in faults]

    def meant(i: int) -> tuple[int, bool, int]:
        # Of a union every branch reports. The one that was meant went deepest, or is at least of the type.
        return len(paths[i]), not faults[i]["type"].endswith("_type"), -i

    best = max(range(len(faults)), key=meant)
    fault, param = faults[best], "".join(_joined(paths[best])) or None
    match fault["type"]:
        case "missing":
            text, code = f"Missing required parameter: '{param}'.", "missing_required_parameter"
        case "union_tag_not_found":
            text, code = f"Missing required parameter: '{param}'.", "missing_required_parameter"
        case "extra_forbidden":
            text, code = f"Unknown parameter: '{param}'.", "unknown_parameter"
        case kind:
            said = f"Invalid value for '{param}': " if param else ""
            text = f"{said}{_in_json(fault)}.".replace("..", ".")
            code = "invalid_type" if kind.endswith("_type") else "invalid_value"
    return BadRequest(text[:LONGEST_SAID], param=param, code=code)


def _in_json(fault: ErrorDetails) -> str:
    """A fault's message in the words of JSON instead of Python's."""
    match fault["type"]:
        case "model_type" | "dict_type" | "model_attributes_type":
            return "Input should be an object"
        case "list_type" | "tuple_type":
            return "Input should be an array"
        case _:
            return fault["msg"].removeprefix("Value error, ")


def _path(fault: ErrorDetails, value: Any) -> list[int | str]:
    """Where a fault is, without the names of union branches, which pydantic puts between."""
    path: list[int | str] = []
    steps = fault["loc"]
    for number, step in enumerate(steps):
        if isinstance(value, dict):
            members = cast("dict[int | str, Any]", value)
            if step in members:
                value = members[step]
                path.append(step)
            elif number == len(steps) - 1 and fault["type"] == "missing":
                path.append(step)
        elif isinstance(value, list) and isinstance(step, int):
            entries = cast("list[Any]", value)
            if step < len(entries):
                value = entries[step]
                path.append(step)
    if fault["type"] in ("union_tag_invalid", "union_tag_not_found"):
        path.append(str(fault.get("ctx", {}).get("discriminator", "type")).strip("'"))
    return path


def _joined(path: list[int | str]) -> list[str]:
    return [
        f"[{step}]" if isinstance(step, int) else "." * (i > 0) + step[:LONGEST_NAME]
        for i, step in enumerate(path)
    ]


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


def _deeper(value: Any, levels: int) -> bool:
    """Some container lies within `levels` others. Level by level, for a recursion could be too deep itself."""
    layer: list[Any] = [value]
    for _ in range(levels):
        layer = [inner for outer in layer for inner in _within(outer)]
    return any(isinstance(value, (dict, list)) for value in layer)


def _within(value: Any) -> Iterable[Any]:
    match value:
        case dict():
            return cast("dict[str, Any]", value).values()
        case list():
            return cast("list[Any]", value)
        case _:
            return ()


def _sendable(value: Any) -> bool:
    try:
        _dumped(value)
    except UnicodeEncodeError:
        return False
    return True


# --- answers --------------------------------------------------------------------------------------------


async def connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled, and awaited to its end, when the client goes away.

    Only after the body is read, for it reads what the client sends next. Raises ClientGone.
    """
    return await _while_there(request.receive, work)


async def _while_there(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        for part in (task, gone):
            part.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Stream(Response):
    """A body that is sent as it is made.

    opened: entered when the answer begins, left when it ends or the client goes. failed: from an error after
    the first piece to the last piece, for a protocol that can say so; without it the body is cut off.
    send_timeout: seconds in which the client must take a piece; a slower one is cut off.
    """

    def __init__(
        self,
        opened: AbstractAsyncContextManager[AsyncIterator[bytes]],
        *,
        media_type: str = EVENT_STREAM,
        headers: Mapping[str, str] | None = None,
        failed: Callable[[AntiphonError], bytes] | None = None,
        send_timeout: float = 15.0,
    ) -> None:
        self._opened = opened
        self._failed = failed
        self._send_timeout = send_timeout
        self.status_code = 200
        self.media_type = media_type
        self.background = None
        self.body = b""
        self.init_headers({**(SSE_HEADERS if media_type == EVENT_STREAM else {}), **(headers or {})})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientGone):
            await _while_there(receive, self._write(send))

    async def _write(self, send: Send) -> None:
        async with self._opened as pieces:
            first = await anext(pieces, b"")
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                await self._piece(send, first)
                async for piece in pieces:
                    await self._piece(send, piece)
            except ClientGone:
                raise
            except Exception as error:
                if not isinstance(error, AntiphonError):
                    log.error("a streamed answer failed: %s", where(error))
                    error = EngineFailed("The server failed; its log has the reason.", code="internal_error")
                if self._failed is None:
                    raise ClientGone from error
                await self._piece(send, self._failed(error))
        await self._piece(send, b"", more=False)

    async def _piece(self, send: Send, piece: bytes, *, more: bool = True) -> None:
        """Raises ClientGone when the client takes nothing for send_timeout."""
        try:
            async with asyncio.timeout(self._send_timeout):
                await send({"type": "http.response.body", "body": piece, "more_body": more})
        except TimeoutError as error:
            log.warning("a client took nothing for %.0f s (server.send_timeout)", self._send_timeout)
            raise ClientGone from error


def sse(data: Json | str, event: str | None = None) -> bytes:
    """One server-sent event. data: JSON, or the text of a closing mark ("[DONE]")."""
    head = b"" if event is None else f"event: {event}\n".encode()
    return head + b"data: " + (data.encode() if isinstance(data, str) else _dumped(data)) + b"\n\n"


def sse_error(error: AntiphonError) -> bytes:
    """An error in the middle of a stream; the SDKs raise it."""
    return sse({"error": error.body()})


def _dumped(value: Json) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
