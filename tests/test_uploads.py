"""Forms: the file goes to disk, everything else is small, and what is wrong is called by its name."""

import asyncio
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import Upload, form

from antiphon.pipeline.errors import BadRequest, TooLarge
from antiphon.transport.http import ClientGone, Endpoint
from antiphon.transport.uploads import MAX_FIELD, MAX_PARTS, OVERHEAD, Form, base, members, uploaded


async def _nothing(request: Any) -> Any:
    raise AssertionError


NOWHERE = Endpoint("POST", "/", _nothing, "")
KEEP = ("model", "include", "chunking_strategy")


async def taken(upload: Upload, limit: int = 1000) -> tuple[Form, bytes | None]:
    async with uploaded(upload.request, keep=KEEP, limit=limit) as found:
        return found, None if found.file is None else found.file.read()


async def refused(upload: Upload, limit: int = 1000) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        await taken(upload, limit)
    return caught.value


@pytest.mark.parametrize("piece", [1, 7, 65_536])
async def test_a_form_in_pieces_of_any_size(piece: int) -> None:
    fields = [("model", "whisper-1"), ("include[]", "a"), ("include[]", "é"), ("other", "x"), ("model", "y")]
    data = b"\r\n--edge\r\n--edg" + bytes(range(256)) + b"\r\n--"
    data = data.replace(b"--edge", b"--edgy")
    found, file = await taken(Upload(NOWHERE, fields, data, piece=piece))
    assert found.fields == (("model", "whisper-1"), ("include[]", "a"), ("include[]", "é"), ("model", "y"))
    assert found.names == {"model", "include[]", "other"}
    assert (file, found.size) == (data, len(data))


@pytest.mark.parametrize("name", ["../../etc/passwd", "/tmp/x", "a\\b", "x" * 500, "%00", "é.wav", ""])
async def test_names_of_files_mean_nothing(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, file = await taken(Upload(NOWHERE, (), b"sound", filename=name))
    assert file == b"sound"
    assert list(tmp_path.iterdir()) == []


async def test_a_file_without_a_name_and_a_form_without_a_file() -> None:
    found, file = await taken(Upload(NOWHERE, [("file", "sound")], None))
    assert file == b"sound"
    found, file = await taken(Upload(NOWHERE, [("model", "x")], None))
    assert (found.file, found.size) == (None, 0)
    found, file = await taken(Upload(NOWHERE, (), b""))
    assert file == b""


async def test_the_file_closes_with_the_form() -> None:
    async with uploaded(Upload(NOWHERE, (), b"sound").request, keep=(), limit=1000) as found:
        assert found.file is not None
        assert isinstance(found.file.name, int)  # it has no name on disk
    assert found.file.closed


# --- limits ---------------------------------------------------------------------------------------------


async def test_a25_a_large_body_is_refused_before_it_is_read() -> None:
    upload = Upload(NOWHERE, (), b"x", headers={"content-length": str(1000 + OVERHEAD + 1)})
    error = await refused(upload)
    assert isinstance(error, TooLarge)
    assert (error.status, error.param) == (413, "file")
    assert "http.max_upload_bytes" in error.message


async def test_a25_a_file_over_the_limit_is_refused_when_it_is_known() -> None:
    assert (await refused(Upload(NOWHERE, (), b"x" * 1001))).status == 413
    assert (await taken(Upload(NOWHERE, (), b"x" * 1000)))[1] == b"x" * 1000


async def test_the_sender_of_a_body_that_is_refused_can_finish() -> None:
    upload = Upload(NOWHERE, (), b"x" * 1_000_000)
    await refused(upload)
    assert upload.unread == 0


async def test_other_parts_are_bounded() -> None:
    error = await refused(Upload(NOWHERE, [("model", "x" * (MAX_FIELD + 1))]))
    assert (error.status, error.param) == (400, "model")
    assert (await taken(Upload(NOWHERE, [("other", "x" * (MAX_FIELD + 1))])))[0].names == {"other"}
    assert (await refused(Upload(NOWHERE, [("a", "")] * (MAX_PARTS + 1)))).code == "invalid_form"
    assert (await refused(Upload(NOWHERE, [("other", "x" * (OVERHEAD + 2000))]))).status == 413


async def test_fifty_uploads_at_a_time_are_not_in_memory() -> None:
    size = 4_000_000
    body = form([("model", "x")], bytes(size))
    tracemalloc.start()
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(50):
                group.create_task(_held(Upload(NOWHERE, body=body), size))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50 * 1_000_000


async def _held(upload: Upload, size: int) -> None:
    async with uploaded(upload.request, keep=KEEP, limit=size) as found:
        assert found.size == size


# --- what is wrong --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/json"},
        {"content-type": "multipart/form-data"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": ""},
    ],
)
async def test_what_is_no_form(headers: dict[str, str]) -> None:
    error = await refused(Upload(NOWHERE, headers=headers))
    assert (error.status, error.code) == (400, "invalid_form")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"--other\r\n\r\n",
        form([("model", "x")], b"sound")[:-10],
        b"--edge\r\nContent-Disposition: form-data\r\n\r\nx\r\n--edge--\r\n",
        b"--edge\r\n\r\nx\r\n--edge--\r\n",
        b"--edge\r\n" + b"X-A: b\r\n" * 50 + b"\r\nx\r\n--edge--\r\n",
        b"--edge\r\nX-A: " + b"b" * 100_000 + b"\r\n\r\nx\r\n--edge--\r\n",
        b'--edge\r\nContent-Disposition: form-data; name="model"\r\n\r\n\xff\r\n--edge--\r\n',
        form([("file", "one")], b"two"),
    ],
)
async def test_what_is_broken(body: bytes) -> None:
    error = await refused(Upload(NOWHERE, body=body))
    assert error.status == 400


@given(st.binary(max_size=300), st.integers(1, 50))
def test_no_bytes_are_an_accident(body: bytes, piece: int) -> None:
    async def attempt() -> None:
        with suppress(BadRequest):
            await taken(Upload(NOWHERE, body=b"--edge\r\n" + body, piece=piece))

    asyncio.run(attempt())


async def test_a_client_that_leaves_while_it_sends() -> None:
    upload = Upload(NOWHERE, body=form([], b"x" * 500)[:200])
    upload.leave.set()
    with pytest.raises(ClientGone):
        await taken(upload)


# --- members --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        [("a[]", "x"), ("a[]", "y")],
        [("a", "x"), ("a", "y")],
        [("a", '["x", "y"]')],
        [("a[]", '["x"]'), ("a", "y")],
        [("a[]", "x"), ("a[]", ""), ("a[]", "y")],
        [("a[0]", "x"), ("a[1]", "y")],
    ],
)
def test_a23_a_list_may_come_in_any_of_these_ways(fields: list[tuple[str, str]]) -> None:
    assert members(fields, lists=["a"]) == {"a": ["x", "y"]}


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ([("o[type]", "server_vad"), ("o[threshold]", "0.4")], {"type": "server_vad", "threshold": "0.4"}),
        ([("o", '{"type": "server_vad", "threshold": 0.4}')], {"type": "server_vad", "threshold": 0.4}),
        ([("o", "auto")], "auto"),
        ([("o", '"auto"')], "auto"),
        ([("o", "{broken")], "{broken"),
        ([("o", "auto"), ("o[type]", "server_vad")], {"type": "server_vad"}),
    ],
)
def test_an_object_may_come_in_any_of_these_ways(fields: list[tuple[str, str]], value: Any) -> None:
    assert members(fields, lists=[], objects=["o"]) == {"o": value}


def test_values() -> None:
    assert members([("a", ""), ("b", "1"), ("b", "2")], lists=[]) == {"b": "2"}
    assert members([("l", "")], lists=["l"]) == {"l": []}
    assert members([("l", '["a", {"b": 1}]')], lists=["l"]) == {"l": ["a", {"b": 1}]}
    assert base("a[b]") == base("a[]") == base("a") == "a"
