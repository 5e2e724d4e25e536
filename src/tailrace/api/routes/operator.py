"""What the operator sees and does while the server runs. Asks for a key with the scope `admin`."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.audited import audited
from tailrace.api.auth import authorize_admin
from tailrace.api.openapi import errors
from tailrace.api.plain import json_reply
from tailrace.api.state import AppState, state_of
from tailrace.api.table import Table
from tailrace.control.explained import shown
from tailrace.control.snapshot import running, snapshot, waiting
from tailrace.control.steering import cancel
from tailrace.errors import ConfigError, InvalidRequest, Unavailable
from tailrace.protocol.responses.page import whole_number

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
@audited("cancel")
async def cancel_request(request: Request, request_id: str) -> Response:
    """End a request that waits or runs; its client gets an error."""
    found = state_of(request)
    return json_reply({"id": request_id, "cancelled": cancel(found.pipeline, request_id)})


@routes.get("/requests", responses=errors(401, 403))
async def list_requests(request: Request) -> Response:
    """Requests that run."""
    return json_reply({"data": running(state_of(request).pipeline)})


@routes.get("/queue", responses=errors(400, 401, 403))
async def queue(request: Request) -> Response:
    """Requests that wait, in their order: the first `limit` (100), of `total`."""
    pipeline, most = state_of(request).pipeline, whole_number(request.query_params, "limit", 100, 1000)
    return json_reply({"data": waiting(pipeline, most), "total": pipeline.waiting})


@routes.post("/drain", responses=errors(401, 403))
@audited("drain")
async def drain(request: Request) -> Response:
    """As SIGTERM: no new work from now on, what is here may finish for the drain time, then the process ends. Asked
    twice it does not end sooner."""
    found = state_of(request)
    if not found.pipeline.draining:
        (found.stop or found.pipeline.begin_drain)()
    there = {"running": found.pipeline.running, "waiting": found.pipeline.waiting}
    return json_reply({"draining": True, **there, "drain_timeout_s": found.config.control.drain_timeout})


async def _budgets(state: AppState) -> list[dict[str, Any]] | None:
    """None while nobody knows: the rest of the state is not to wait for that."""
    if state.keeping.wanted and not state.keeping.ready:
        return None
    try:
        return await state.pipeline.limits.budgets()
    except Unavailable:
        return None


@routes.post("/reload", responses=errors(400, 401, 403))
@audited("reload")
async def reload(request: Request) -> Response:
    """As SIGHUP: read the settings again. 400 with a mistake in them, and nothing has changed."""
    try:
        done = state_of(request).settings.reload()
    except ConfigError as error:
        raise InvalidRequest(error.message, param=error.param, code="config") from error
    return json_reply({"changed": list(done.changed), "needs_restart": list(done.needs_restart)})


@routes.get("/config", responses=errors(401, 403))
async def config(request: Request) -> Response:
    """Every setting that holds, where it came from and whether a reload can change it. Secrets are counted. Tenants as
    the file has them; `/admin/tenants` has them as they are."""
    rows = state_of(request).settings.rows()
    return json_reply(
        {
            "data": [
                {"name": row.name, "value": shown(row.rule, row.value), "source": row.origin, "live": row.live}
                for row in rows
            ]
        }
    )
