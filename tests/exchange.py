"""An HTTP client without a socket: it asks an ASGI application, leaves when told to, reads as slowly as told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message


class Exchange:
    """One request and what comes of it.

    body: the pieces of the request's body. whole: False leaves the last piece out. leave: set it and the
    client is gone. reads: while it is not set, nothing that is sent is taken.
    """

    def __init__(
        self,
        method: str = "GET",
        path: str = "/",
        body: bytes | Iterable[bytes] | Mapping[str, Any] = b"",
        headers: Mapping[str, str] | None = None,
        *,
        whole: bool = True,
    ) -> None:
        if isinstance(body, Mapping):
            body = json.dumps(body).encode()
        self.pieces = [body] if isinstance(body, bytes) else list(body)
        self.whole = whole
        self.leave = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()
        self.sent: list[Message] = []
        path, _, query = path.partition("?")
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "state": {},
            "extensions": {},
        }

    async def receive(self) -> Message:
        if self.pieces:
            piece = self.pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self.pieces) or not self.whole}
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await self.reads.wait()
        self.sent.append(message)

    @property
    def request(self) -> Request:
        return Request(self.scope, self.receive)

    async def ask(self, app: ASGIApp) -> Exchange:
        await app(self.scope, self.receive, self.send)
        return self

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None

    @property
    def headers(self) -> Headers:
        return Headers(raw=self.sent[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])

    @property
    def complete(self) -> bool:
        return len(self.sent) > 1 and not self.sent[-1].get("more_body", False)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error of an answer in OpenAI's envelope, with nothing else in it."""
        said = self.json
        assert set(said) == {"error"}
        assert set(said["error"]) == {"message", "type", "code", "param"}
        assert isinstance(said["error"]["message"], str)
        return said["error"]


async def ask(app: ASGIApp, *args: Any, **options: Any) -> Exchange:
    return await Exchange(*args, **options).ask(app)
