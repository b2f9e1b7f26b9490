"""API keys: made once, shown once, kept as hashes in a file that only its owner can read.

    KeyRing       the keys of a file, and which of them a secret is. Pure
    read, change  the file as a ring; a change of it, whole or not at all
    WatchedKeys   the ring of a running server, which follows the file

A secret is 32 random bytes, so its SHA-256 needs neither salt nor stretching. A revoked key stays in the file,
so that its name can be found in old logs and a ring whose last key was revoked is not an open door.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import hmac
import json
import logging
import os
import secrets
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..pipeline.errors import SettingsError

PREFIX = "ak_"
INTERVAL = 1.0
"""Seconds between looks at the file, at least."""

log = logging.getLogger("antiphon.server")

T = TypeVar("T")


def digest(secret: str) -> str:
    """SHA-256, in hexadecimal."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Key:
    """One key without its secret.

    created, revoked: Unix seconds; revoked None while it is good. The limits are as in `auth.*`, None to take
    those: 0 for none.
    """

    id: str
    name: str
    created: int
    sha256: str
    requests_per_minute: int | None = None
    audio_seconds_per_minute: int | None = None
    sessions: int | None = None
    revoked: int | None = None

    def public(self) -> dict[str, Any]:
        """Everything but the hash."""
        return {name: value for name, value in asdict(self).items() if name != "sha256"}


@dataclass(frozen=True, slots=True)
class KeyRing:
    keys: tuple[Key, ...] = ()

    @property
    def active(self) -> tuple[Key, ...]:
        return tuple(key for key in self.keys if key.revoked is None)

    def find(self, secret: str) -> Key | None:
        """The key that a secret is, unless it is revoked. Takes the same time for every secret."""
        wanted, found = digest(secret), None
        for key in self.active:
            if hmac.compare_digest(key.sha256, wanted):
                found = key
        return found

    def get(self, id: str) -> Key | None:
        """The key of this id, unless it is revoked."""
        return next((key for key in self.active if key.id == id), None)

    def added(self, key: Key) -> KeyRing:
        return KeyRing((*self.keys, key))

    def revoked(self, id: str, now: int) -> tuple[KeyRing, Key]:
        """Without the key of this id, or of this name if it is the only one; and that key.

        Raises SettingsError when there is no such key.
        """
        named = [key for key in self.keys if id == key.id] or [key for key in self.active if id == key.name]
        if len(named) != 1:
            ids = ", ".join(key.id for key in named)
            why = (
                f"is the name of several: {ids}" if named else "is no key here; `antiphon keys list` has them"
            )
            raise SettingsError(f"{id!r} {why}")
        (key,) = named
        gone = key if key.revoked is not None else replace(key, revoked=now)
        return KeyRing(tuple(gone if each is key else each for each in self.keys)), gone


def new_key(
    name: str,
    now: int,
    *,
    requests_per_minute: int | None = None,
    audio_seconds_per_minute: int | None = None,
    sessions: int | None = None,
) -> tuple[Key, str]:
    """A fresh key, and its secret, which nothing can tell again."""
    secret = PREFIX + secrets.token_urlsafe(32)
    key = Key(
        "key_" + secrets.token_hex(6),
        name,
        now,
        digest(secret),
        requests_per_minute,
        audio_seconds_per_minute,
        sessions,
    )
    return key, secret


# --- the file -------------------------------------------------------------------------------------------


class _Entry(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    id: str = Field(min_length=1)
    name: str
    created: int
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    requests_per_minute: int | None = Field(None, ge=0)
    audio_seconds_per_minute: int | None = Field(None, ge=0)
    sessions: int | None = Field(None, ge=0)
    revoked: int | None = None


class _File(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    keys: list[_Entry]


def read(path: Path) -> KeyRing:
    """The keys of a file; none where there is no file. Raises SettingsError for one that cannot be read."""
    try:
        return _parsed(path.read_bytes())
    except FileNotFoundError:
        return KeyRing()
    except OSError as error:
        raise SettingsError(f"auth.keys: {path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        place = ".".join(str(step) for step in error.errors()[0]["loc"])
        raise SettingsError(
            f"auth.keys: {path} is not a file of keys ({place or 'not JSON'}); mend it, or move it away and "
            "make new keys with `antiphon keys add NAME`"
        ) from None


def _parsed(text: bytes) -> KeyRing:
    return KeyRing(tuple(Key(**entry.model_dump()) for entry in _File.model_validate_json(text).keys))


def change(path: Path, changed: Callable[[KeyRing], tuple[KeyRing, T]]) -> T:
    """Read, change and write the file while nobody else does; a reader sees all of it or nothing.

    Raises SettingsError, and what `changed` raises; then the file is as it was.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(path.name + ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            ring, said = changed(read(path))
            _write(path, ring)
            return said
    except OSError as error:
        raise SettingsError(f"auth.keys: {path} cannot be written: {error.strerror}") from None


def _write(path: Path, ring: KeyRing) -> None:
    text = json.dumps({"keys": [asdict(key) for key in ring.keys]}, indent=2, ensure_ascii=False)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # mkstemp's files are 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(handle)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


class WatchedKeys:
    """The keys of a running server. time: seconds of a steady clock.

    A file that cannot be read any more, or is gone, leaves the keys as they were: a slip of an editor neither
    locks everybody out nor lets anybody in.
    """

    def __init__(self, path: Path, time: Callable[[], float]) -> None:
        """Reads the file. Raises SettingsError."""
        self._path = path
        self._time = time
        self._mark = _mark(path)
        self._ring = read(path)
        self._next = time() + INTERVAL
        self.required = bool(self._ring.keys)
        """There is, or once was, a key. A server that asked for one never stops asking."""

    async def current(self) -> KeyRing:
        """The keys as of a second ago or later. Cancelling is safe."""
        now = self._time()
        if now >= self._next:
            self._next = now + INTERVAL
            await asyncio.to_thread(self._look)
        return self._ring

    def _look(self) -> None:
        mark = _mark(self._path)
        if mark == self._mark:
            return
        self._mark = mark
        if mark is None:
            log.warning("the file of keys (auth.keys) is gone; the keys stay as they were")
            return
        try:
            self._ring = read(self._path)
        except SettingsError as error:
            log.warning("%s; the keys stay as they were", error.message)
        else:
            self.required = self.required or bool(self._ring.keys)
            log.info("the file of keys has changed: %d are good", len(self._ring.active))


def _mark(path: Path) -> tuple[int, int, int] | None:
    """Differs when a file was written; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
