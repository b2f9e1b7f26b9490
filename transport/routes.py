"""Every HTTP endpoint of the service, module by module."""

from __future__ import annotations

from collections.abc import Iterator

from . import (
    chat,
    client_secrets,
    completions,
    embeddings,
    health,
    model_endpoints,
    responses,
    speech,
    tokens,
    transcriptions,
)
from .http import Endpoint, Services


def endpoints(services: Services) -> Iterator[Endpoint]:
    """In the order of the OpenAPI document. A module that serves something has an `endpoints` of its own."""
    yield from health.endpoints(services)
    yield from model_endpoints.endpoints(services)
    yield from client_secrets.endpoints(services)
    yield from tokens.endpoints(services)
    yield from chat.endpoints(services)
    yield from completions.endpoints(services)
    yield from responses.endpoints(services)
    yield from embeddings.endpoints(services)
    yield from speech.endpoints(services)
    yield from transcriptions.endpoints(services)
