"""Keys: what is kept of them, the file they are in, and a server that follows it."""

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from antiphon.pipeline.errors import SettingsError
from antiphon.transport.keys import INTERVAL, KeyRing, WatchedKeys, change, digest, new_key, read


def add(path: Path, name: str = "me", **limits: int) -> str:
    key, secret = new_key(name, 1000, **limits)
    change(path, lambda ring: (ring.added(key), None))
    return secret


def revoke(path: Path, id: str) -> None:
    change(path, lambda ring: ring.revoked(id, 2000))


def test_a_secret_is_long_random_and_not_kept() -> None:
    (key, secret), (other, second) = new_key("me", 5), new_key("me", 5)
    assert secret.startswith("ak_")
    assert len(secret) >= len("ak_") + 43  # 32 bytes in base64
    assert secret != second
    assert key.id != other.id
    assert secret not in repr(key)
    assert key.sha256 == digest(secret)
    assert "sha256" not in key.public()


def test_a_ring_knows_its_secrets() -> None:
    (one, first), (two, second) = new_key("one", 5), new_key("two", 5)
    ring = KeyRing((one, two))
    assert ring.find(first) == one
    assert ring.find(second) == two
    for wrong in ("", first[:-1], first + "x", first.upper(), one.sha256, "ключ", "\ud800"):
        assert ring.find(wrong) is None
    ring, gone = ring.revoked(one.id, 9)
    assert gone.revoked == 9
    assert ring.find(first) is None
    assert ring.get(one.id) is None
    assert ring.find(second) == two
    assert ring.keys[0] == gone  # it stays in the list
    assert ring.revoked(one.id, 10)[1].revoked == 9


def test_a_key_is_revoked_by_id_or_by_a_name_of_its_own() -> None:
    (one, _), (two, _), (three, _) = new_key("a", 5), new_key("a", 5), new_key("b", 5)
    ring = KeyRing((one, two, three))
    assert ring.revoked("b", 9)[1].id == three.id
    with pytest.raises(SettingsError, match=f"several: {one.id}, {two.id}"):
        ring.revoked("a", 9)
    ring, _ = ring.revoked(one.id, 9)
    assert ring.revoked("a", 9)[1].id == two.id
    with pytest.raises(SettingsError, match="keys list"):
        ring.revoked("c", 9)


def test_the_file_is_its_owners_alone_and_holds_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "keys.json"
    old = os.umask(0)
    try:
        secret = add(path, requests_per_minute=5)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert secret not in path.read_text()
    assert secret.removeprefix("ak_") not in path.read_text()
    (key,) = read(path).keys
    assert (key.name, key.created, key.requests_per_minute) == ("me", 1000, 5)
    assert read(path).find(secret) == key


def test_no_file_is_no_key(tmp_path: Path) -> None:
    assert read(tmp_path / "keys.json") == KeyRing()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"keys": 3}', '{"keys": [{"id": "x"}]}', '{"keys": [], "more": 1}']
)
def test_a_broken_file_is_the_operators_to_mend(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    with pytest.raises(SettingsError, match=r"auth\.keys.*keys\.json"):
        read(path)
    with pytest.raises(SettingsError):
        add(path)
    assert path.read_text() == text
    assert {entry.name for entry in tmp_path.iterdir()} == {"keys.json", "keys.json.lock"}


def test_a_file_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="cannot be written"):
        add(tmp_path / "file" / "keys.json")
    with pytest.raises(SettingsError, match="cannot be read"):
        read(tmp_path)


def test_many_who_add_at_a_time_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    threads = [threading.Thread(target=add, args=(path, f"n{number}")) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {key.name for key in read(path).keys} == {f"n{number}" for number in range(12)}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_running_server_follows_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, clock = tmp_path / "keys.json", Clock()
    watched = WatchedKeys(path, clock)
    assert not watched.required
    secret = add(path)
    assert not (await watched.current()).keys  # it looked less than a second ago
    clock.now += INTERVAL
    assert (await watched.current()).find(secret)
    assert watched.required
    revoke(path, "me")
    clock.now += INTERVAL
    assert (await watched.current()).find(secret) is None
    assert watched.required
    assert secret not in caplog.text


async def test_a_server_that_asked_for_keys_never_stops(tmp_path: Path) -> None:
    path, clock = tmp_path / "keys.json", Clock()
    secret = add(path)
    watched = WatchedKeys(path, clock)

    async def now() -> KeyRing:
        clock.now += INTERVAL
        return await watched.current()

    path.write_text("{")  # an editor's slip
    assert (await now()).find(secret)
    path.unlink()
    assert (await now()).find(secret)
    path.write_text(json.dumps({"keys": []}))
    assert not (await now()).keys
    assert watched.required
