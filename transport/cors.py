"""Which pages of the web may call from a browser, and what the browser is told. Pure.

A browser asks before a page sends what a form could not (the preflight), and hands the page no answer that does
not name its origin. Keys travel in headers, never in cookies, so no answer speaks of credentials.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

METHODS = "GET, POST, DELETE, HEAD, OPTIONS"
MAX_AGE = 600
"""Seconds for which a browser need not ask again."""

HEADERS = frozenset(
    {"accept", "accept-language", "api-key", "authorization", "content-type", "idempotency-key"}
)
PREFIXES = ("openai-", "x-stainless-", "x-client-")
"""Request headers that a page may set: those of OpenAI's clients."""

EXPOSED = ", ".join(
    (
        *("x-request-id", "retry-after", "x-should-retry"),
        *("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    )
)
"""Answer headers that a page may read."""


class Cors:
    """allowed: origins with commas between, "*" for every one, "" for none.

    local: whether "*" means pages of this machine only, for want of a key that others would lack.
    """

    def __init__(self, allowed: str, *, local: Callable[[], bool] = lambda: False) -> None:
        self._local = local
        self._allowed = frozenset(origin.strip().rstrip("/") for origin in allowed.split(",")) - {""}

    def allows(self, origin: str) -> bool:
        if "*" in self._allowed and (not self._local() or loopback(origin)):
            return True
        return origin in self._allowed

    def headers(self, origin: str | None) -> Mapping[str, str]:
        """What an answer adds for a page of this origin; None where no page asks."""
        if origin is None:
            return {}
        if not self.allows(origin):
            return {"Vary": "Origin"}
        if "*" in self._allowed and not self._local():
            return {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": EXPOSED}
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Expose-Headers": EXPOSED,
            "Vary": "Origin",
        }

    def preflight(self, origin: str, wanted: str) -> Mapping[str, str]:
        """What the answer to a preflight has besides. wanted: names of the headers that the page will send."""
        if not self.allows(origin):
            return {}
        names = [name.strip().lower() for name in wanted.split(",")]
        granted = [name for name in names if name in HEADERS or name.startswith(PREFIXES)]
        return {
            "Access-Control-Allow-Methods": METHODS,
            "Access-Control-Allow-Headers": ", ".join(granted or sorted(HEADERS)),
            "Access-Control-Max-Age": str(MAX_AGE),
        }


def loopback(origin: str) -> bool:
    """Whether an origin, or a host after "//", is this machine's alone."""
    try:
        name = urlsplit(origin).hostname or ""
        return name == "localhost" or name.endswith(".localhost") or ip_address(name).is_loopback
    except ValueError:  # "http://[::1": anybody may send anything
        return False
