"""Multipart forms, read while they come: the file goes to disk, the rest is small and bounded.

    request body --python-multipart--> fields (text, kept)     those an endpoint asks for, each at most MAX_FIELD
                                       file   (bytes, on disk) in a file without a name, gone when it is closed

What a client calls its file, and what kind it says it is, is not even read. Memory is bounded by a write's
buffer, however large the upload. A body over the limit is refused as soon as that is known: by its own
statement of its length, or when so much of it has come. Some of the rest is then still taken in, for a client
that is cut off while it sends does not read the answer.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, Literal, TypeVar

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from ..pipeline.errors import BadRequest, Overloaded, TooLarge
from ..pipeline.threads import to_the_end
from .http import ClientGone

T = TypeVar("T")

log = logging.getLogger("antiphon.server")

WRITE = 262_144
"""Bytes gathered for one write to disk."""
MAX_FIELD = 65_536
"""Bytes of a field's value."""
MAX_PARTS = 1_000
OVERHEAD = 1_048_576
"""Bytes that a body may have besides its file."""
TAKEN = 67_108_864
"""Bytes of a body that is refused which are taken in, so that its sender reads the refusal."""


@dataclass(frozen=True, slots=True)
class Form:
    """fields: the values that were asked for, in order. names: of every part but the file, as they were sent.

    file: at its beginning, None where there is none; it closes with the form. size: its bytes.
    """

    fields: tuple[tuple[str, str], ...]
    names: frozenset[str]
    file: BinaryIO | None
    size: int


@asynccontextmanager
async def uploaded(request: Request, *, keep: Collection[str], limit: int) -> AsyncGenerator[Form, None]:
    """The form of a request, as long as the context lasts.

    keep: base names ("include" of "include[]") of the fields whose values are wanted; others are read over.
    limit: bytes of the file. The part called "file" is the file.
    Raises BadRequest for what is no form, TooLarge, ClientGone. Leaving it, or being cancelled in it, frees
    the disk.
    """
    parts = _Parts(_boundary(request), keep)
    file: Any = None
    try:
        async with aclosing(_bytes(request, parts, limit)) as pieces:
            async for written in pieces:
                file = file or await _on_disk(tempfile.TemporaryFile)
                await _on_disk(partial(file.write, written))
        if parts.has_file:
            file = file or await _on_disk(tempfile.TemporaryFile)
            await _on_disk(partial(file.seek, 0))
        yield Form(tuple(parts.fields), frozenset(parts.names), file, parts.size)
    finally:
        if file is not None:
            # Not awaited: who is cancelled must free the disk too, and nothing is left to be written.
            file.close()


async def _on_disk(call: Callable[[], T]) -> T:
    try:
        return await to_the_end(call)
    except OSError as error:
        log.error("an upload cannot be written: %s", error.strerror)
        raise Overloaded("The server has no room for uploads just now.") from error


async def _bytes(request: Request, parts: _Parts, limit: int) -> AsyncGenerator[bytes, None]:
    """What is to be written of the file."""
    stated = request.headers.get("content-length", "")
    too_large = TooLarge(
        f"The file is larger than {limit} bytes (http.max_upload_bytes).", param="file", code="file_too_large"
    )
    taken = 0
    try:
        if stated.isdecimal() and int(stated) > limit + OVERHEAD:
            raise too_large
        async for piece in request.stream():
            taken += len(piece)
            parts.push(piece)
            if parts.size > limit or taken > limit + OVERHEAD:
                raise too_large
            if len(parts.data) >= WRITE:
                yield parts.taken()
        parts.finish()
        if parts.data:
            yield parts.taken()
    except ClientDisconnect as error:
        raise ClientGone from error
    except BadRequest:
        await _take_in(request)
        raise


async def _take_in(request: Request) -> None:
    taken = 0
    try:
        async for piece in request.stream():
            taken += len(piece)
            if taken > TAKEN:
                break
    except (ClientDisconnect, RuntimeError) as error:  # Starlette's, when the stream was read to its end
        if isinstance(error, ClientDisconnect):
            raise ClientGone from error


def _boundary(request: Request) -> bytes:
    kind, options = parse_options_header(request.headers.get("content-type"))
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise BadRequest("The body must be a multipart/form-data form with a file.", code="invalid_form")
    return boundary


class _Parts:
    """One form being read. data: bytes of the file that are not on disk yet."""

    def __init__(self, boundary: bytes, keep: Collection[str]) -> None:
        self.fields: list[tuple[str, str]] = []
        self.names: set[str] = set()
        self.data = bytearray()
        self.size = 0
        self.has_file = False
        self._keep = keep
        self._count = 0
        self._ended = False
        self._header, self._value = b"", b""
        self._name: str | None = None
        self._where: Literal["file", "field", "nowhere"] = "nowhere"
        self._field = bytearray()
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_field": self._header_name,
                    "on_header_value": self._header_value,
                    "on_header_end": self._header_end,
                    "on_headers_finished": self._headers_end,
                    "on_part_data": self._data,
                    "on_part_end": self._end,
                    "on_end": self._all,
                },
            )
        except FormParserError as error:
            raise _malformed() from error

    def push(self, piece: bytes) -> None:
        """Read on. Raises BadRequest for what is no form."""
        try:
            self._parser.write(piece)
        except FormParserError as error:
            raise _malformed() from error

    def finish(self) -> None:
        if not self._ended:
            raise BadRequest("The form is cut off: its last boundary is missing.", code="invalid_form")

    def taken(self) -> bytes:
        data = bytes(self.data)
        self.data.clear()
        return data

    def _begin(self) -> None:
        self._count += 1
        if self._count > MAX_PARTS:
            raise BadRequest(f"The form has more than {MAX_PARTS} parts.", code="invalid_form")
        self._name, self._where = None, "nowhere"
        self._header, self._value = b"", b""
        self._field.clear()

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            name = parse_options_header(self._value)[1].get(b"name")
            self._name = None if name is None else name.decode("utf-8", "replace")
        self._header, self._value = b"", b""

    def _headers_end(self) -> None:
        if self._name is None:
            raise BadRequest("A part of the form has no name.", code="invalid_form")
        if self._name == "file":
            if self.has_file:
                raise BadRequest("The form has more than one file.", param="file", code="invalid_form")
            self.has_file, self._where = True, "file"
            return
        self.names.add(self._name)
        if base(self._name) in self._keep:
            self._where = "field"

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._where == "file":
            self.size += end - start
            self.data += data[start:end]
        elif self._where == "field":
            self._field += data[start:end]
            if len(self._field) > MAX_FIELD:
                raise BadRequest(
                    f"'{self._name}' is longer than {MAX_FIELD} bytes.",
                    param=self._name,
                    code="invalid_value",
                )

    def _end(self) -> None:
        if self._where == "field" and self._name is not None:
            try:
                self.fields.append((self._name, self._field.decode()))
            except UnicodeDecodeError as error:
                raise BadRequest(
                    f"'{self._name}' is no UTF-8 text.", param=self._name, code="invalid_value"
                ) from error

    def _all(self) -> None:
        self._ended = True


def _malformed() -> BadRequest:
    return BadRequest("The body is no valid multipart/form-data form.", code="invalid_form")


# --- fields to members ----------------------------------------------------------------------------------


def base(name: str) -> str:
    """ "include" of "include[]", "chunking_strategy" of "chunking_strategy[type]"."""
    return name.partition("[")[0]


def members(
    fields: Iterable[tuple[str, str]], *, lists: Collection[str], objects: Collection[str] = ()
) -> dict[str, Any]:
    """The fields of a form as JSON would have them; numbers and booleans stay text.

    A list may come as `name[]` or `name`, once for each entry, or as a JSON array; an object as `name[member]`,
    or as JSON. An empty value is as if it were not there; of others that come twice the last counts.
    """
    found: dict[str, Any] = {}
    for name, value in fields:
        head = base(name)
        inner = name[len(head) :].strip("[]")
        if head in lists:
            found.setdefault(head, []).extend(_entries(value))
        elif value == "":
            continue
        elif inner and head in objects:
            members = found.get(head)
            found[head] = {**(members if isinstance(members, Mapping) else {}), inner: value}  # pyright: ignore[reportUnknownMemberType]
        elif head in objects:
            found[head] = _json(value, "{")
        else:
            found[head] = value
    return found


def _entries(value: str) -> list[Any]:
    parsed = _json(value, "[")
    if isinstance(parsed, list):
        return parsed  # pyright: ignore[reportUnknownVariableType]
    return [value] if value else []


def _json(value: str, opening: str) -> Any:
    """The JSON that a text which begins so is; else the text."""
    if value.lstrip()[:1] in (opening, '"'):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value
