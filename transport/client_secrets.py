"""POST /v1/realtime/client_secrets: a secret that a browser may hold, bound to a session's configuration.

A server that has an API key asks for one and hands it to its page, which opens /v1/realtime with it: as often
as it likes until the secret expires, and each session begins with what was asked for here. Sessions that are
open when it expires go on. Secrets live in memory: a server that starts anew knows none of the old ones.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from .auth import EPHEMERAL, Secret
from .http import Endpoint, Services, answer, client_of, read_json
from .session_object import Offer, SessionObject

DEFAULT_SECONDS = 600

MOST_BYTES = 2**16
"""Of a request: what it asks for is kept until the secret expires."""


class ExpiresAfter(BaseModel):
    model_config = ConfigDict(strict=True)

    anchor: Literal["created_at"] | None = None
    seconds: Annotated[int, Field(ge=10, le=7200)] | None = None


class ClientSecretRequest(BaseModel):
    """session: as in `session.update`; what it does not say is as the server has it."""

    model_config = ConfigDict(strict=True)

    expires_after: ExpiresAfter | None = None
    session: dict[str, Any] | None = None


class ClientSecret(BaseModel):
    """expires_at: Unix seconds. session: the whole session object."""

    value: str
    expires_at: int
    session: dict[str, Any]


def endpoints(services: Services) -> list[Endpoint]:
    if services.offer is None:
        return []
    secrets = ClientSecrets(services, services.offer)
    return [
        Endpoint(
            "POST",
            "/v1/realtime/client_secrets",
            secrets.create,
            "A secret for one session's configuration",
            body=ClientSecretRequest,
            answer=ClientSecret,
        )
    ]


class ClientSecrets:
    def __init__(self, services: Services, offer: Offer) -> None:
        self._services = services
        self._offer = offer

    async def create(self, request: Request) -> Response:
        services = self._services
        limit = min(MOST_BYTES, services.settings.http.max_body_bytes)
        asked = await read_json(request, ClientSecretRequest, limit=limit)
        wanted = asked.expires_after.seconds if asked.expires_after else None
        # Checked before a secret is made of it; raises BadRequest that names the member, as session.….
        begun = SessionObject.begun(self._offer, None, asked.session or {})
        now = int(services.time())
        secret = Secret(
            session=asked.session or {},
            expires_at=now + (DEFAULT_SECONDS if wanted is None else wanted),
            key=client_of(request).key,
        )
        value = EPHEMERAL + secrets.token_urlsafe(32)
        services.secrets.add(value, secret, now)
        session = {
            "id": services.new_id("sess"),
            **begun.wire(),
            "expires_at": secret.expires_at,
        }
        return answer(ClientSecret(value=value, expires_at=int(secret.expires_at), session=session))
