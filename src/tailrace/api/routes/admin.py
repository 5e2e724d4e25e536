"""Probes and metrics. Open without a key: without one they say nothing of a tenant."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.auth import knows_tenants
from tailrace.api.openapi import errors
from tailrace.api.plain import json_reply
from tailrace.api.state import state_of
from tailrace.api.table import Table
from tailrace.errors import Unavailable
from tailrace.protocol.schema import Status

routes = Table("operations")


@routes.get("/health/live", response_model=Status)
async def live(request: Request) -> Response:
    """200 as long as the process answers."""
    return _status("live")


@routes.get("/health", response_model=Status, responses=errors(503), include_in_schema=False)
@routes.get("/health/ready", response_model=Status, responses=errors(503))
async def ready(request: Request) -> Response:
    """200 while new work is taken and the engine makes progress; 503 with the reason otherwise.

    Also at /health, where load generators and other servers' users look.
    """
    health = await state_of(request).pipeline.health()
    if not health.ok:
        raise Unavailable(f"Not ready: {health.reason}", code="not_ready", retry_after=1.0)
    return _status("ready")


@routes.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}, **errors(401)})
async def metrics(request: Request) -> Response:
    """Prometheus text format. What names tenants is for a key with the scope `admin`, where there are keys."""
    state, tenants = state_of(request), knows_tenants(request)
    state.metrics.ready = (await state.pipeline.health()).ok
    text = await asyncio.to_thread(state.metrics.scrape(tenants=tenants).text)
    return Response(text, media_type=state.metrics.content_type)


def _status(status: str) -> Response:
    return json_reply({"status": status})
