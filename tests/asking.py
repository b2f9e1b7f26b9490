"""One request to an endpoint's handler, below any server; and a language model that says what it is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from antiphon.llm.base import ChatRequest, Delta, TextRequest, TokenLogprob
from antiphon.pipeline.engines import Engines
from antiphon.pipeline.errors import AntiphonError
from antiphon.pipeline.events import Usage
from antiphon.pipeline.metrics import Metrics
from antiphon.pipeline.settings import Settings
from antiphon.transport.http import ClientGone, Endpoint, Services, refused
from antiphon.transport.models import Models, Served

MODELS = Models((Served("talker", "chat"), Served("hearer", "transcription"), Served("voice", "speech")))

Script = Sequence[Delta | Exception]


def services(engines: Engines, settings: Settings | None = None) -> Services:
    numbers = iter(range(10**6))
    return Services(
        settings or Settings(),
        engines,
        Metrics(),
        MODELS,
        lambda prefix: f"{prefix}_{next(numbers)}",
        lambda: 1000.5,
    )


def words(text: str, reason: Any = "stop", *, tokens: int = 10) -> list[Delta]:
    """A reply, a word a delta."""
    pieces = text.split(" ")
    deltas = [Delta(piece if n == 0 else " " + piece) for n, piece in enumerate(pieces)]
    return [*deltas, Delta("", reason, Usage(tokens, 2, len(pieces)))]


def token(text: str, logprob: float = -0.5, *top: tuple[str, float]) -> TokenLogprob:
    return TokenLogprob(text, logprob, text.encode(), tuple((t, p, t.encode()) for t, p in top))


class ScriptedModel:
    """A ChatModel and TextModel. scripts: of each request in turn, the last for all that follow.

    requests: what it was given. active: how many run. hold: while it is not set, nothing comes after the first
    delta; stopped: set when a request was left early.
    """

    vocabulary = 1000
    context = 100

    def __init__(self, *scripts: Script) -> None:
        self._scripts = list(scripts) or [words("Hello there.")]
        self.requests: list[ChatRequest | TextRequest] = []
        self.active = 0
        self.most = 0
        self.hold = asyncio.Event()
        self.hold.set()
        self.begun = asyncio.Event()

    @asynccontextmanager
    async def stream(self, request: ChatRequest | TextRequest) -> AsyncIterator[AsyncIterator[Delta]]:
        script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        self.requests.append(request)
        self.active += 1
        self.most = max(self.most, self.active)
        try:
            yield self._deltas(script)
        finally:
            self.active -= 1

    complete = stream

    async def _deltas(self, script: Script) -> AsyncIterator[Delta]:
        for number, delta in enumerate(script):
            await asyncio.sleep(0)
            if number == 1:
                self.begun.set()
                await self.hold.wait()
            if isinstance(delta, Exception):
                raise delta
            yield delta

    async def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        return [len(word) for word in text.split()]

    async def detokenize(self, tokens: Sequence[int]) -> str:
        return "".join(f"<{number}>" for number in tokens)

    async def render(self, request: ChatRequest) -> str:
        return "\n".join(message.content for message in request.messages)


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    writes: list[bytes] = field(default_factory=list[bytes])

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The data of a stream, "[DONE]" as it is."""
        frames = self.body.decode().split("\n\n")
        assert frames.pop() == ""
        assert all(frame.startswith("data: ") for frame in frames)
        data = [frame.removeprefix("data: ") for frame in frames]
        return [text if text == "[DONE]" else json.loads(text) for text in data]

    @property
    def error(self) -> Any:
        error = self.json["error"]
        assert set(error) == {"message", "type", "code", "param"}
        return error


async def ask(endpoint: Endpoint, body: Any, *, leave: Callable[[], Any] | None = None) -> Answer:
    """The answer to a JSON body. leave: awaited after the body, then the client goes away."""
    answer = Answer()
    incoming = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

    async def receive() -> dict[str, Any]:
        if incoming:
            return incoming.pop()
        if leave is None:
            await asyncio.Event().wait()
        else:
            await leave()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            answer.writes.append(message["body"])
            answer.body += message["body"]

    scope = {"type": "http", "method": endpoint.method, "path": endpoint.path, "headers": []}
    try:
        response = await endpoint.handler(Request(scope, receive))
        await response(scope, receive, send)
    except ClientGone:
        pass
    except AntiphonError as error:
        await refused(error)(scope, receive, send)
    return answer
