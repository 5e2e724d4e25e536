"""Probes and metrics. Open without a key: they say nothing about anyone's requests."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from tailrace.api.openapi import errors
from tailrace.api.state import AppState
from tailrace.errors import Unavailable
from tailrace.protocol.schema import Status

router = APIRouter(tags=["operations"])


@router.get("/health/live", response_model=Status)
async def live() -> dict[str, str]:
    """200 as long as the process answers."""
    return {"status": "live"}


@router.get("/health", response_model=Status, responses=errors(503), include_in_schema=False)
@router.get("/health/ready", response_model=Status, responses=errors(503))
async def ready(request: Request) -> dict[str, str]:
    """200 while new work is taken and the engine makes progress; 503 with the reason otherwise.

    Also at /health, where load generators and other servers' users look.
    """
    state: AppState = request.app.state.tailrace
    health = await state.pipeline.health()
    if not health.ok:
        raise Unavailable(f"Not ready: {health.reason}", code="not_ready", retry_after=1.0)
    return {"status": "ready"}


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """Prometheus text format."""
    state: AppState = request.app.state.tailrace
    return Response(state.metrics.render(), media_type=state.metrics.content_type)
