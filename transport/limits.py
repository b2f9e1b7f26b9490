"""What one API key may use, as token buckets. Pure: time is an argument, in seconds of any steady clock.

A bucket holds a minute's allowance and fills evenly, so a key that was idle may spend a whole minute's at
once. Requests are paid before they are served. Audio is paid for as it is heard or spoken, when nobody knows
yet how much it will be, so its bucket may fall below zero: what began is finished, and what comes next waits
until the debt is paid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..pipeline.errors import RateLimited

MINUTE = 60.0

ROUNDING = 1e-6
"""What many small fillings may lack, so that who waited as long as told does not wait again."""


class Bucket:
    """per_minute: the allowance, above 0; it begins full."""

    def __init__(self, per_minute: float, now: float) -> None:
        self.per_minute = per_minute
        self._level = per_minute
        self._at = now

    def level(self, now: float) -> float:
        """What is there; below zero in debt."""
        # Two callers may have read the clock in one order and come here in the other.
        passed = max(0.0, now - self._at)
        self._level = min(self.per_minute, self._level + passed * self.per_minute / MINUTE)
        self._at += passed
        return self._level

    def spend(self, amount: float, now: float) -> None:
        """Take `amount`, whether it is there or not."""
        self.level(now)
        self._level -= amount

    def wait(self, amount: float, now: float) -> float:
        """Seconds until `amount`, at most the allowance, is there; 0 if it is."""
        short = amount - self.level(now)
        return short * MINUTE / self.per_minute if short > ROUNDING else 0.0

    def reset(self, now: float) -> float:
        """Seconds until it is full."""
        return self.wait(self.per_minute, now)


@dataclass(frozen=True, slots=True)
class Allowance:
    """requests and audio_seconds: a minute; sessions: at a time. 0 is no limit."""

    requests: int = 0
    audio_seconds: int = 0
    sessions: int = 0


class Meter:
    """One key's use."""

    def __init__(self, allowance: Allowance, now: float) -> None:
        self.sessions = 0
        self.allow(allowance, now)

    def allow(self, allowance: Allowance, now: float) -> None:
        """A new allowance, with full buckets; conversations that are open stay counted."""
        self.allowance = allowance
        self._requests = Bucket(allowance.requests, now) if allowance.requests else None
        self._audio = Bucket(allowance.audio_seconds, now) if allowance.audio_seconds else None

    def request(self, now: float) -> None:
        """Count a request. Raises RateLimited, and counts nothing, when none is left."""
        if self._requests is None:
            return
        if wait := self._requests.wait(1, now):
            raise RateLimited(
                f"This key may make {self.allowance.requests} requests a minute; the next in {_span(wait)}.",
                retry_after=math.ceil(wait),
            )
        self._requests.spend(1, now)

    def headers(self, now: float) -> Mapping[str, str]:
        """OpenAI's headers on what is left of the requests; none where there is no limit."""
        if self._requests is None:
            return {}
        return {
            "x-ratelimit-limit-requests": str(self.allowance.requests),
            "x-ratelimit-remaining-requests": str(max(0, math.floor(self._requests.level(now)))),
            "x-ratelimit-reset-requests": _span(self._requests.reset(now)),
        }

    def audio(self, seconds: float, now: float) -> None:
        """Count sound. Raises RateLimited, and counts nothing, while what was used before is in debt."""
        if self._audio is None:
            return
        if wait := self._audio.wait(0, now):
            raise RateLimited(
                f"This key may use {self.allowance.audio_seconds} seconds of audio a minute; more in "
                f"{_span(wait)}.",
                retry_after=math.ceil(wait),
            )
        self._audio.spend(seconds, now)

    def open_session(self) -> None:
        """Count a conversation that begins. Raises RateLimited when too many are open."""
        if 0 < self.allowance.sessions <= self.sessions:
            raise RateLimited(
                f"This key may have {self.allowance.sessions} conversations at a time, and has."
            )
        self.sessions += 1

    def close_session(self) -> None:
        self.sessions -= 1


class Meters:
    """The meter of each key, by its id."""

    def __init__(self) -> None:
        self._meters: dict[str, Meter] = {}

    def of(self, key: str, allowance: Allowance, now: float) -> Meter:
        """The key's meter. When its allowance was changed, its buckets begin anew."""
        meter = self._meters.get(key)
        if meter is None:
            meter = self._meters[key] = Meter(allowance, now)
        elif meter.allowance != allowance:
            meter.allow(allowance, now)
        return meter


def _span(seconds: float) -> str:
    """A time as OpenAI's headers write it: "1s", "6m0s"."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
