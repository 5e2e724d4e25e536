"""What the operator sees and does while the server runs. Asks for a key with the scope `admin`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.auth import authorize_admin
from tailrace.api.openapi import errors
from tailrace.api.plain import body_of, json_reply
from tailrace.api.state import AppState, state_of
from tailrace.api.table import Table
from tailrace.control.snapshot import snapshot
from tailrace.control.steering import cancel, change_tenant
from tailrace.errors import InvalidRequest, Unavailable

routes = Table("admin", prefix="/admin", guard=authorize_admin)


@routes.get("/state", responses=errors(401, 403))
async def state(request: Request) -> Response:
    """Queues by class and tenant, running requests, KV map, recent tails, refusals, budgets of money, step budget,
    prediction errors."""
    found = state_of(request)
    uptime = found.clock.wall() - found.started
    return json_reply({"uptime_s": uptime, **snapshot(found.pipeline), "budgets": await _budgets(found)})


@routes.get("/models", responses=errors(401, 403))
async def models(request: Request) -> Response:
    """Which models are loaded, what memory they have, how many requests run on them or wait, and how long they idle."""
    models = state_of(request).models
    return json_reply({"models": models.report(), "adapters": models.report_adapters()})


@routes.post("/requests/{request_id}/cancel", responses=errors(401, 403, 404))
async def cancel_request(request: Request, request_id: str) -> Response:
    """End a request that waits or runs; its client gets an error."""
    found = state_of(request)
    return json_reply({"id": request_id, "cancelled": cancel(found.pipeline, request_id)})


@routes.patch("/tenants/{name}", responses=errors(400, 401, 403, 404))
async def patch_tenant(request: Request, name: str) -> Response:
    """Another weight, priority, mode or other limits, from the next decision on: `{"weight": 2}`,
    `{"limits": {"requests_per_minute": 60}}`. What is not named stays; a restart forgets it."""
    found = state_of(request)
    tenant = change_tenant(found.pipeline, name, _object(await body_of(request)))
    return json_reply(
        {"name": name, "weight": tenant.weight, "priority": tenant.priority, "limits": asdict(tenant.limits)}
    )


async def _budgets(state: AppState) -> list[dict[str, Any]] | None:
    """None while nobody knows: the rest of the state is not to wait for that."""
    if state.keeping.wanted and not state.keeping.ready:
        return None
    try:
        return await state.pipeline.limits.budgets()
    except Unavailable:
        return None


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The request body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(found, dict):
        raise InvalidRequest("The request body must be a JSON object", code="invalid_json")
    return found
