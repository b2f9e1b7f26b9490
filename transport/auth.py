"""Who asks, and whether they may. No socket: headers in, a client or a refusal out.

    Authorization: Bearer KEY                         what every client sends
    api-key: KEY                                      Azure's way
    Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.KEY
                                                      a browser's websocket, which can set no header

    KEY         where no key is configured   else
    none, any   everybody                    refused
    ak_…        everybody                    the key, until it is revoked
    ek_…        for /v1/realtime alone, until it expires or the key that made it is revoked

A refusal says nothing of what a good key looks like beyond its prefix, and no log line holds a key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..pipeline.errors import Overloaded, Unauthorized
from ..pipeline.settings import AuthSettings
from .keys import Key, KeyRing, WatchedKeys, digest
from .limits import Allowance, Meter, Meters

EPHEMERAL = "ek_"
SUBPROTOCOL = "openai-insecure-api-key."

MOST_SECRETS = 4096
"""Ephemeral secrets that are good at a time; the next is refused until one has expired."""

ANYBODY = ""
"""The id under which everybody goes where no key is configured."""


@dataclass(frozen=True, slots=True)
class Client:
    """Who asks.

    key: the id of their key, or ANYBODY. preset: the session that an ephemeral secret is bound to, as a
    `session.update` would say it. now: the clock of the meter.
    """

    key: str
    meter: Meter
    now: Callable[[], float]
    preset: Mapping[str, Any] | None = None

    def spend_audio(self, seconds: float) -> None:
        """Count sound heard or spoken. Raises RateLimited when what was used before is over the limit."""
        self.meter.audio(seconds, self.now())


@dataclass(frozen=True, slots=True)
class Secret:
    """An ephemeral secret without its text. expires_at: Unix seconds. key: who made it."""

    session: Mapping[str, Any]
    expires_at: float
    key: str


class EphemeralSecrets:
    """The ephemeral secrets that are good, by their hash. now: Unix seconds."""

    def __init__(self, most: int = MOST_SECRETS) -> None:
        self._most = most
        self._secrets: dict[str, Secret] = {}

    def __len__(self) -> int:
        return len(self._secrets)

    def add(self, value: str, secret: Secret, now: float) -> None:
        """Raises Overloaded when there are too many."""
        if len(self._secrets) >= self._most:
            self._secrets = {hash: kept for hash, kept in self._secrets.items() if kept.expires_at > now}
        if len(self._secrets) >= self._most:
            soonest = min(kept.expires_at for kept in self._secrets.values())
            raise Overloaded(
                f"{self._most} client secrets are good at the moment, and no more can be kept.",
                retry_after=int(soonest - now) + 1,
            )
        self._secrets[digest(value)] = secret

    def find(self, value: str, now: float) -> Secret | None:
        """None for one that is unknown or has expired. As often as wanted until then."""
        found = self._secrets.get(digest(value))
        return found if found is not None and now < found.expires_at else None


def presented(headers: Mapping[str, str], subprotocols: Iterable[str] = ()) -> str | None:
    """The key that a request brings, "" for an Authorization that is none, None for nothing at all."""
    if (given := headers.get("authorization")) is not None:
        scheme, _, key = given.strip().partition(" ")
        return key.strip() if scheme.lower() == "bearer" else ""
    if (given := headers.get("api-key")) is not None:
        return given.strip()
    for offered in subprotocols:
        if offered.startswith(SUBPROTOCOL):
            return offered.removeprefix(SUBPROTOCOL)
    return None


class Gate:
    """Lets clients in. time: a steady clock's seconds; unix: the wall's."""

    def __init__(
        self,
        settings: AuthSettings,
        keys: WatchedKeys | None,
        secrets: EphemeralSecrets,
        *,
        time: Callable[[], float],
        unix: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._secrets = secrets
        self._time = time
        self._unix = unix
        self._meters = Meters()

    async def enter(self, key: str | None, *, realtime: bool = False) -> Client:
        """The client that brings this key. Raises Unauthorized."""
        ring = KeyRing() if self._keys is None else await self._keys.current()
        if key is not None and key.startswith(EPHEMERAL):
            if not realtime:
                raise Unauthorized("A client secret (ek_…) is good for /v1/realtime alone; send an API key.")
            secret = self._secrets.find(key, self._unix())
            if secret is None:
                raise Unauthorized("This client secret is unknown or has expired; make a new one.")
            return self._client(ring.get(secret.key), secret.key, secret.session)
        if not self.required:
            return self._client(None, ANYBODY)
        if not key:
            raise Unauthorized("An API key is needed: send `Authorization: Bearer KEY`.")
        found = ring.find(key)
        if found is None:
            raise Unauthorized("This API key is not known here, or was revoked.")
        return self._client(found, found.id)

    @property
    def required(self) -> bool:
        """Not everybody may come in."""
        return self._keys is not None and self._keys.required

    def _client(self, key: Key | None, id: str, preset: Mapping[str, Any] | None = None) -> Client:
        if self.required and key is None:
            raise Unauthorized("The API key that made this client secret was revoked.")
        now = self._time()
        allowance = Allowance() if key is None else self._allowance(key)
        return Client(id, self._meters.of(id, allowance, now), self._time, preset)

    def _allowance(self, key: Key) -> Allowance:
        common = self._settings

        def either(own: int | None, all: int) -> int:
            return all if own is None else own

        return Allowance(
            either(key.requests_per_minute, common.requests_per_minute),
            either(key.audio_seconds_per_minute, common.audio_seconds_per_minute),
            either(key.sessions, common.sessions),
        )
