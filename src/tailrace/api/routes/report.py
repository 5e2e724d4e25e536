"""Reports over the ledger: of all tenants for operators, of its own requests for a tenant."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.auth import authorize, authorize_admin, principal_of
from tailrace.api.openapi import errors
from tailrace.api.plain import json_reply
from tailrace.api.state import state_of
from tailrace.api.table import Table
from tailrace.control.report.question import question
from tailrace.errors import ConfigError, InvalidRequest

_JSON: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {}}}}
_TEXT = {"type": "string"}
_ABOUT = {
    "since": "a time ago such as 24h or 7d, or a date; 7d by default",
    "until": "the same; now by default",
    "by": "some of tenant, class, bucket, model and day, with commas between them",
}
_QUERY = {
    "parameters": [{"name": name, "in": "query", "schema": _TEXT, "description": text} for name, text in _ABOUT.items()]
}

own = Table("requests", guard=authorize)
all_tenants = Table("admin", guard=authorize_admin)


@own.get("/v1/report", responses={**_JSON, **errors(400, 401, 403, 503)}, openapi_extra=_QUERY)
async def of_own(request: Request) -> Response:
    """Ours: outcomes, latencies, tokens, money, deadlines and success of one's own requests, in groups, the worst
    first."""
    return await _report(request, principal_of(request).tenant)


@all_tenants.get("/admin/report", responses={**_JSON, **errors(400, 401, 403, 503)}, openapi_extra=_QUERY)
async def of_all(request: Request) -> Response:
    """Outcomes, latencies, tokens, money, deadlines and success of all requests, or of one `tenant`, in groups, the
    worst first."""
    return await _report(request, request.query_params.get("tenant", ""))


async def _report(request: Request, tenant: str) -> Response:
    state, asked = state_of(request), request.query_params
    try:
        since, until, by = (asked.get(name, "") for name in _ABOUT)
        wanted = question(since, until, by, tenant, state.clock.wall())
        return json_reply(await state.reports.data(wanted, state.pipeline.limits.currency))
    except ConfigError as error:
        raise InvalidRequest(error.message, param=error.param) from error
