"""Who may come in, with what, and who may not: the whole matrix, without a socket."""

from pathlib import Path
from typing import Any

import pytest

from antiphon.pipeline.errors import AntiphonError, Overloaded, RateLimited, Unauthorized
from antiphon.pipeline.settings import AuthSettings
from antiphon.transport.auth import ANYBODY, EphemeralSecrets, Gate, Secret, presented
from antiphon.transport.keys import INTERVAL, WatchedKeys, change, new_key
from antiphon.transport.limits import Allowance

EK = "ek_secret"


class World:
    """A gate, its keys and its clocks."""

    def __init__(self, folder: Path, *, keys: bool, **settings: int) -> None:
        self.path = folder / "keys.json"
        self.now = 0.0
        self.secrets = EphemeralSecrets()
        self.good = self.add("good") if keys else "ak_unknown"
        self.bad = self.add("bad") if keys else "ak_unknown"
        if keys:
            change(self.path, lambda ring: ring.revoked("bad", 1))
        watched = WatchedKeys(self.path, lambda: self.now)
        self.gate = Gate(
            AuthSettings(**settings), watched, self.secrets, time=lambda: self.now, unix=lambda: self.now
        )

    def add(self, name: str, **limits: int) -> str:
        key, secret = new_key(name, 0, **limits)
        change(self.path, lambda ring: (ring.added(key), None))
        return secret

    async def secret(self, seconds: float = 60, session: dict[str, Any] | None = None) -> str:
        """A client secret that the good key made, or anybody."""
        client = await self.gate.enter(self.good)
        self.secrets.add(EK, Secret(session or {}, self.now + seconds, client.key), self.now)
        return EK

    async def refused(self, key: str | None, *, realtime: bool = False) -> AntiphonError:
        with pytest.raises(Unauthorized) as caught:
            await self.gate.enter(key, realtime=realtime)
        error = caught.value
        assert (error.status, error.code, error.type) == (401, "invalid_api_key", "invalid_request_error")
        assert error.headers() == {"WWW-Authenticate": "Bearer"}
        assert key is None or len(key) < 4 or key not in error.message
        return error


@pytest.mark.parametrize(
    ("headers", "subprotocols", "key"),
    [
        ({}, [], None),
        ({"authorization": "Bearer ak_x"}, [], "ak_x"),
        ({"authorization": "bearer   ak_x "}, [], "ak_x"),
        ({"authorization": "Basic ak_x"}, [], ""),
        ({"authorization": "ak_x"}, [], ""),
        ({"authorization": "Bearer"}, [], ""),
        ({"authorization": ""}, ["openai-insecure-api-key.ak_y"], ""),
        ({"api-key": "ak_x"}, [], "ak_x"),
        ({"authorization": "Bearer ak_x", "api-key": "ak_y"}, [], "ak_x"),
        ({}, ["realtime", "openai-insecure-api-key.ek_x"], "ek_x"),
        ({}, ["realtime"], None),
        ({"authorization": "Bearer ak_x"}, ["openai-insecure-api-key.ak_y"], "ak_x"),
    ],
)
def test_where_a_key_is_found(headers: dict[str, str], subprotocols: list[str], key: str | None) -> None:
    assert presented(headers, subprotocols) == key


@pytest.mark.parametrize("key", [None, "", "unused", "ak_anything", "sk-anything"])
async def test_where_no_key_is_configured_everybody_may_come_in(tmp_path: Path, key: str | None) -> None:
    world = World(tmp_path, keys=False)
    for realtime in (False, True):
        client = await world.gate.enter(key, realtime=realtime)
        assert client.key == ANYBODY
        assert client.preset is None


async def test_where_a_key_is_configured_only_a_good_one_opens(tmp_path: Path) -> None:
    world = World(tmp_path, keys=True)
    for realtime in (False, True):
        assert (await world.gate.enter(world.good, realtime=realtime)).key.startswith("key_")
        for key in (None, "", "unused", "ak_wrong", world.bad, world.good + "x", world.good[:-1]):
            await world.refused(key, realtime=realtime)


async def test_a_key_that_is_revoked_while_the_server_runs(tmp_path: Path) -> None:
    world = World(tmp_path, keys=True)
    await world.gate.enter(world.good)
    change(world.path, lambda ring: ring.revoked("good", 1))
    world.now += INTERVAL
    await world.refused(world.good)
    new = world.add("new")
    world.now += INTERVAL
    await world.gate.enter(new)


@pytest.mark.parametrize("keys", [False, True])
async def test_a39_a_client_secret_opens_realtime_until_it_expires(tmp_path: Path, keys: bool) -> None:
    world = World(tmp_path, keys=keys)
    secret = await world.secret(60, {"instructions": "Be kind."})
    for world.now in (0, 30, 59.9):  # as often as wanted
        client = await world.gate.enter(secret, realtime=True)
        assert client.preset == {"instructions": "Be kind."}
    await world.refused(secret)  # and nothing else
    world.now = 60
    await world.refused(secret, realtime=True)
    await world.refused("ek_unknown", realtime=True)


async def test_a39_a_client_secret_ends_with_the_key_that_made_it(tmp_path: Path) -> None:
    world = World(tmp_path, keys=True)
    secret = await world.secret()
    change(world.path, lambda ring: ring.revoked("good", 1))
    world.now += INTERVAL
    await world.refused(secret, realtime=True)


async def test_a_client_secret_from_before_there_were_keys_opens_nothing_after(tmp_path: Path) -> None:
    world = World(tmp_path, keys=False)
    secret = await world.secret()
    world.add("first")
    world.now += INTERVAL
    await world.refused(secret, realtime=True)


def test_a39_client_secrets_are_bounded_and_kept_as_hashes() -> None:
    kept = EphemeralSecrets(most=2)
    kept.add("ek_1", Secret({}, 10, "a"), 0)
    kept.add("ek_2", Secret({}, 20, "a"), 0)
    with pytest.raises(Overloaded) as caught:
        kept.add("ek_3", Secret({}, 30, "a"), 5)
    assert caught.value.retry_after == 6
    kept.add("ek_3", Secret({}, 30, "a"), 10)
    assert len(kept) == 2
    assert kept.find("ek_1", 5) is None
    assert kept.find("ek_2", 10)
    assert "ek_2" not in repr(vars(kept))


async def test_limits_are_the_settings_unless_the_key_has_its_own(tmp_path: Path) -> None:
    world = World(tmp_path, keys=True, requests_per_minute=3, sessions=2)
    own = world.add("own", requests_per_minute=1, audio_seconds_per_minute=60, sessions=0)
    world.now += INTERVAL
    common = await world.gate.enter(world.good)
    assert common.meter.allowance == Allowance(requests=3, audio_seconds=0, sessions=2)
    special = await world.gate.enter(own)
    assert special.meter.allowance == Allowance(requests=1, audio_seconds=60, sessions=0)
    special.spend_audio(100)
    again = await world.gate.enter(own)
    with pytest.raises(RateLimited):
        again.spend_audio(1)
    common.spend_audio(100)


async def test_a_client_secret_uses_up_what_its_key_may(tmp_path: Path) -> None:
    world = World(tmp_path, keys=True, sessions=1)
    (await world.gate.enter(await world.secret(), realtime=True)).meter.open_session()
    with pytest.raises(RateLimited):
        (await world.gate.enter(world.good, realtime=True)).meter.open_session()
