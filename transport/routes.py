"""Every HTTP endpoint of the service, module by module."""

from __future__ import annotations

from collections.abc import Iterator

from . import speech
from .http import Endpoint, Services


def endpoints(services: Services) -> Iterator[Endpoint]:
    """In the order of the OpenAPI document. A module that serves something has an `endpoints` of its own."""
    yield from ()
    yield from speech.endpoints(services)
