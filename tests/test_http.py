"""The frame of the endpoints: bodies in, what is wrong with them, and clients that leave or do not read."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

import pytest
from exchange import Exchange
from pydantic import BaseModel, ConfigDict, Field

from antiphon.pipeline.errors import AntiphonError, BadRequest, EngineFailed, Overloaded, TooLarge
from antiphon.transport.http import (
    DEEPEST,
    LONG_BODY,
    ClientGone,
    Stream,
    answer,
    connected,
    read_json,
    read_query,
    refused,
    sse,
    sse_error,
    validated,
)


class Text(BaseModel):
    model_config = ConfigDict(strict=True)

    type: Literal["text"]
    text: str


class Image(BaseModel):
    model_config = ConfigDict(strict=True)

    type: Literal["image"]
    url: str


class Message(BaseModel):
    model_config = ConfigDict(strict=True)

    role: Literal["user", "system"]
    content: str | Annotated[list[Annotated[Text | Image, Field(discriminator="type")]], Field(min_length=1)]


class Named(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    id: str


class Body(BaseModel):
    model_config = ConfigDict(strict=True)

    model: str
    messages: Annotated[list[Message], Field(min_length=1)] = []
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    voice: str | Named | None = None
    rest: Any = None


async def read(body: bytes | dict[str, Any], limit: int = 2**24) -> Body:
    return await read_json(Exchange("POST", body=body).request, Body, limit=limit)


async def wrong(body: bytes | dict[str, Any]) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        await read(body)
    assert caught.value.status == 400
    return caught.value


# --- bodies ---------------------------------------------------------------------------------------------


async def test_a_body_is_read_as_its_model() -> None:
    body = await read({"model": "m", "messages": [{"role": "user", "content": "hé 🙂"}], "unknown": 1})
    assert body.messages[0].content == "hé 🙂"


async def test_a_body_in_pieces_and_a_long_one_are_the_same() -> None:
    text = "x" * LONG_BODY
    whole = json.dumps({"model": text}).encode()
    pieces = [whole[at : at + 1000] for at in range(0, len(whole), 1000)]
    got = await read_json(Exchange("POST", body=pieces).request, Body, limit=2**20)
    assert got.model == text
    with pytest.raises(BadRequest, match="not valid JSON"):
        await read(b"x" * (LONG_BODY + 1))


NOT_JSON = {
    "nothing": b"",
    "half": b"{",
    "no JSON": b"model=m",
    "no text": b"\xff\xfe\xfa",
    "a constant of Python's": b'{"model": "m", "temperature": NaN}',
    "a number too large": b'{"model": "m", "rest": 1e999}',
    "half a surrogate pair": b'{"model": "\\ud83d"}',
    "half a pair in a key": b'{"model": "m", "rest": {"\\udc00": 1}}',
    "a long integer": b'{"model": "m", "rest": ' + b"1" * 5000 + b"}",
    "very deep": b'{"model": "m", "rest": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep": b'{"model": "m", "rest": ' + b"[" * DEEPEST + b"]" * DEEPEST + b"}",
    "deep objects": b'{"model": "m", "rest": ' + b'{"a":' * DEEPEST + b"1" + b"}" * DEEPEST + b"}",
}


@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON)
async def test_what_is_no_json_is_refused(body: bytes) -> None:
    error = await wrong(body)
    assert (error.code, error.param) == ("invalid_json", None)


@pytest.mark.parametrize("body", [b"[]", b'"x"', b"3", b"null"])
async def test_a_body_is_an_object(body: bytes) -> None:
    assert (await wrong(body)).code == "invalid_type"


async def test_what_is_json_is_read() -> None:
    wide = {"model": "m", "rest": [[]] * 500}
    assert (await read(wide)).rest == [[]] * 500
    assert (await read(b'{"model": "\\ud83d\\ude42"}')).model == "🙂"
    allowed = DEEPEST - 1
    assert (await read(b'{"model": "m", "rest": ' + b"[" * allowed + b"]" * allowed + b"}")).rest


async def test_a_body_over_the_limit_is_refused_before_it_is_whole() -> None:
    exchange = Exchange("POST", body=[b" " * 60, b" " * 60, b" " * 60])
    with pytest.raises(TooLarge) as caught:
        await read_json(exchange.request, Body, limit=100)
    assert caught.value.status == 413
    assert len(exchange.pieces) == 1


async def test_a_client_that_leaves_in_its_body() -> None:
    exchange = Exchange("POST", body=b'{"mod', whole=False)
    exchange.leave.set()
    with pytest.raises(ClientGone):
        await read_json(exchange.request, Body, limit=100)


OK = {"role": "user", "content": "x"}


def parts(*content: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{**OK, "content": list(content)}]}


PART = "messages[0].content[0]"
FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({}, "model", "missing_required_parameter"),
    ({"model": 3}, "model", "invalid_type"),
    ({"model": None}, "model", "invalid_type"),
    ({"model": "m", "messages": []}, "messages", "invalid_value"),
    ({"model": "m", "messages": {}}, "messages", "invalid_type"),
    ({"model": "m", "messages": ["x"]}, "messages[0]", "invalid_type"),
    ({"model": "m", "messages": [{"content": "x"}]}, "messages[0].role", "missing_required_parameter"),
    ({"model": "m", "messages": [OK, {**OK, "role": "god"}]}, "messages[1].role", "invalid_value"),
    ({"model": "m", "messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
    ({"model": "m", "messages": [{**OK, "content": 3}]}, "messages[0].content", "invalid_type"),
    ({"model": "m", "messages": [{**OK, "content": []}]}, "messages[0].content", "invalid_value"),
    (parts({"type": "text"}), f"{PART}.text", "missing_required_parameter"),
    (parts({"type": "text", "text": 1}), f"{PART}.text", "invalid_type"),
    (parts({"type": "video"}), f"{PART}.type", "invalid_value"),
    (parts({}), f"{PART}.type", "missing_required_parameter"),
    ({"model": "m", "temperature": 3}, "temperature", "invalid_value"),
    ({"model": "m", "temperature": "1"}, "temperature", "invalid_type"),
    ({"model": "m", "voice": 3}, "voice", "invalid_type"),
    ({"model": "m", "voice": {"id": 3}}, "voice.id", "invalid_type"),
    ({"model": "m", "voice": {"name": "x"}}, "voice.id", "missing_required_parameter"),
    ({"model": "m", "voice": {"id": "x", "name": "y"}}, "voice.name", "unknown_parameter"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "param", "code"), FAULTS)
async def test_a_refusal_names_the_member(body: dict[str, Any], param: str, code: str) -> None:
    error = await wrong(body)
    assert (error.param, error.code) == (param, code)
    assert f"'{param}'" in error.message
    for word in ("dict", "tuple", "NoneType", "Named", "pydantic"):
        assert word not in error.message


async def test_a_refusal_stays_short() -> None:
    long = "x" * 100_000
    error = await wrong({"model": "m", "voice": {"id": "x", long: 1}})
    assert len(error.message) < 1100
    assert len(error.param or "") < 200
    error = await wrong(parts({"type": long}))
    assert len(error.message) < 1100


class Query(BaseModel):
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    include: list[str] = []


def test_a_query_is_read_as_its_model() -> None:
    query = read_query(Exchange(path="/x?limit=5&include[]=a&include[]=b&other=1").request, Query)
    assert query == Query(limit=5, include=["a", "b"])
    with pytest.raises(BadRequest) as caught:
        read_query(Exchange(path="/x?limit=500").request, Query)
    assert caught.value.param == "limit"


# --- answers --------------------------------------------------------------------------------------------


def test_members_that_were_not_set_are_left_out() -> None:
    class Answer(BaseModel):
        one: int
        two: int | None = None

    assert answer(Answer(one=1)).body == b'{"one":1}'
    assert answer(Answer(one=1, two=None)).body == b'{"one":1,"two":null}'


def test_an_error_is_its_envelope_its_status_and_its_headers() -> None:
    response = refused(Overloaded("Full.", retry_after=7))
    assert response.status_code == 503
    assert response.headers["retry-after"] == "7"
    assert response.headers["x-should-retry"] == "true"
    assert json.loads(response.body) == {
        "error": {"message": "Full.", "type": "server_error", "code": "overloaded", "param": None}
    }


def test_events() -> None:
    assert sse({"a": "é\n"}) == 'data: {"a":"é\\n"}\n\n'.encode()
    assert sse("[DONE]") == b"data: [DONE]\n\n"
    assert sse({}, "x.y") == b"event: x.y\ndata: {}\n\n"


# --- clients that leave ---------------------------------------------------------------------------------


class Work:
    """Work in an engine: `running` while it holds a slot."""

    def __init__(self) -> None:
        self.running = 0
        self.begun = asyncio.Event()
        self.done = asyncio.Event()

    async def run(self) -> str:
        self.running += 1
        self.begun.set()
        try:
            await self.done.wait()
            return "done"
        finally:
            await asyncio.sleep(0)  # an engine that takes a moment to stop
            self.running -= 1


async def left_over(exchange: Exchange) -> None:
    """Take the body, as an endpoint has before it waits."""
    while exchange.pieces:
        await exchange.receive()


async def test_work_runs_to_its_end_while_the_client_is_there() -> None:
    work, exchange = Work(), Exchange()
    await left_over(exchange)
    task = asyncio.create_task(connected(exchange.request, work.run()))
    await work.begun.wait()
    work.done.set()
    assert await task == "done"
    assert work.running == 0


async def test_a_client_that_leaves_ends_the_work_before_anything_else() -> None:
    work, exchange = Work(), Exchange()
    await left_over(exchange)
    task = asyncio.create_task(connected(exchange.request, work.run()))
    await work.begun.wait()
    exchange.leave.set()
    with pytest.raises(ClientGone):
        await task
    assert work.running == 0


async def test_being_cancelled_ends_the_work_too() -> None:
    work, exchange = Work(), Exchange()
    await left_over(exchange)
    task = asyncio.create_task(connected(exchange.request, work.run()))
    await work.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.running == 0


async def test_an_error_of_the_work_is_raised() -> None:
    async def fail() -> None:
        raise EngineFailed("no")

    exchange = Exchange()
    await left_over(exchange)
    with pytest.raises(EngineFailed):
        await connected(exchange.request, fail())


class Source:
    """A body of `pieces`; an exception among them is raised there. Waits before `hold_at` while held."""

    def __init__(self, *pieces: bytes | Exception, hold_at: int | None = None) -> None:
        self.pieces = pieces
        self.hold_at = hold_at
        self.held = asyncio.Event()
        self.hold = asyncio.Event()
        self.open = 0

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[AsyncIterator[bytes]]:
        self.open += 1
        try:
            yield self._made()
        finally:
            await asyncio.sleep(0)
            self.open -= 1

    async def _made(self) -> AsyncIterator[bytes]:
        for number, piece in enumerate(self.pieces):
            if number == self.hold_at:
                self.held.set()
                await self.hold.wait()
            if isinstance(piece, Exception):
                raise piece
            yield piece


async def streamed(source: Source, exchange: Exchange | None = None, **options: Any) -> Exchange:
    exchange = exchange or Exchange()
    await left_over(exchange)
    await Stream(source.opened(), **options)(exchange.scope, exchange.receive, exchange.send)
    assert source.open == 0
    return exchange


async def test_a_stream_is_sent_piece_by_piece() -> None:
    got = await streamed(Source(b"a", b"b", b"c"))
    assert [message.get("body") for message in got.sent[1:]] == [b"a", b"b", b"c", b""]
    assert got.status == 200
    assert got.complete
    assert got.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert got.headers["cache-control"] == "no-cache"
    assert got.headers["x-accel-buffering"] == "no"
    assert "content-length" not in got.headers
    assert (await streamed(Source())).body == b""


async def test_an_error_before_the_first_piece_is_a_status() -> None:
    source = Source(Overloaded("Full."))
    with pytest.raises(Overloaded):
        await streamed(source)
    assert source.open == 0


async def test_a17_an_error_after_the_first_piece_is_an_error_frame_and_the_end() -> None:
    got = await streamed(Source(b"data: 1\n\n", EngineFailed("It broke.")), failed=sse_error)
    first, frame = got.body.split(b"\n\n")[:2]
    assert first == b"data: 1"
    said = json.loads(frame.removeprefix(b"data: "))["error"]
    assert said == {"message": "It broke.", "type": "server_error", "code": "engine_failed", "param": None}
    assert got.complete


async def test_a_fault_of_ours_in_a_stream_says_nothing_of_itself(caplog: pytest.LogCaptureFixture) -> None:
    got = await streamed(Source(b"data: 1\n\n", RuntimeError("what was said")), failed=sse_error)
    assert b"internal_error" in got.body
    assert b"what was said" not in got.body
    assert "what was said" not in caplog.text
    assert "RuntimeError" in caplog.text


async def test_a_stream_that_cannot_say_it_failed_is_cut_off() -> None:
    got = await streamed(Source(b"RIFF", EngineFailed("It broke.")), media_type="audio/wav")
    assert got.body == b"RIFF"
    assert not got.complete


async def test_a_client_that_leaves_a_stream_frees_the_engine() -> None:
    source, exchange = Source(b"a", b"b", hold_at=1), Exchange()
    task = asyncio.create_task(streamed(source, exchange))
    await source.held.wait()
    assert source.open == 1
    exchange.leave.set()
    await task
    assert exchange.body == b"a"
    assert not exchange.complete


async def test_a_client_that_leaves_before_the_first_piece_frees_the_engine() -> None:
    source, exchange = Source(b"a", hold_at=0), Exchange()
    task = asyncio.create_task(streamed(source, exchange))
    await source.held.wait()
    exchange.leave.set()
    await task
    assert exchange.sent == []


async def test_a_client_that_never_reads_is_cut_off() -> None:
    source, exchange = Source(b"a", b"b", hold_at=1), Exchange()
    task = asyncio.create_task(streamed(source, exchange, send_timeout=0.01))
    await source.held.wait()
    exchange.reads.clear()
    source.hold.set()
    await task
    assert not exchange.complete


async def test_a_slow_engine_is_not_taken_for_a_slow_client() -> None:
    got = await streamed(Source(b"a", TimeoutError("an engine's own")), failed=sse_error, send_timeout=5.0)
    assert b"internal_error" in got.body


def test_every_error_says_how_to_be_answered() -> None:
    kinds = [AntiphonError]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        assert 400 <= kind.status < 600
        assert isinstance(kind.type, str)


@pytest.mark.parametrize(
    "value",
    [
        {"messages": [{}] * 60_000},
        {"logit_bias": {str(n): 0 for n in range(9000)}},
        {"a": [[[]] * 20_000] * 3},
    ],
)
def test_a_body_of_more_parts_than_anybody_means_is_refused_unread(value: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="more than"):
        validated(value, Anything)


class Anything(BaseModel):
    model_config = ConfigDict(extra="allow")
