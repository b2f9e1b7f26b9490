"""What those who run the server ask: is it alive, may it have work, what did it do.

    GET /health         200 while it answers at all, 503 while it drains
    GET /ready          200 when every model is loaded and warm, 503 while it drains
    GET /metrics        Prometheus' text format
    GET /debug/traces   the latest turns of conversations, without what was said

The port is opened when the models are warm, so an answer of /ready says that they are; a prober that comes
before finds no server yet. The first two need no key, for a supervisor has none.
"""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from .http import Endpoint, Services, answer


class Health(BaseModel):
    status: str


class Ready(BaseModel):
    """models: of those that are loaded."""

    status: str
    models: list[str]


class Traces(BaseModel):
    traces: list[dict[str, object]]


class TraceQuery(BaseModel):
    session: str | None = None


def endpoints(services: Services) -> list[Endpoint]:
    async def health(request: Request) -> Response:
        draining = services.draining()
        return answer({"status": "draining" if draining else "ok"}, 503 if draining else 200)

    async def ready(request: Request) -> Response:
        draining = services.draining()
        models = [served.id for served in services.models.served]
        said = {"status": "draining" if draining else "ready", "models": models}
        return answer(said, 503 if draining else 200)

    async def metrics(request: Request) -> Response:
        return Response(services.metrics.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def traces(request: Request) -> Response:
        return answer({"traces": services.metrics.traces(request.query_params.get("session"))})

    return [
        Endpoint("GET", "/health", health, "Is the server alive", answer=Health, public=True),
        Endpoint("GET", "/ready", ready, "May the server have work", answer=Ready, public=True),
        Endpoint("GET", "/metrics", metrics, "Counters for Prometheus", answer=("text/plain",)),
        Endpoint("GET", "/debug/traces", traces, "The latest turns", answer=Traces, query=TraceQuery),
    ]
