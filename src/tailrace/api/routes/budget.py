"""What a caller may still spend of its own limits."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.auth import authorize, principal_of
from tailrace.api.openapi import errors
from tailrace.api.plain import json_reply
from tailrace.api.state import state_of
from tailrace.api.table import Table

routes = Table("money", guard=authorize)


@routes.get("/v1/budget", responses=errors(401, 503))
async def budget(request: Request) -> Response:
    """The limits of the caller's tenant and key: what each allows, what was spent and is held of it, and when a budget
    begins anew."""
    limits = state_of(request).pipeline.limits
    return json_reply({"currency": limits.currency, "limits": await limits.standing(principal_of(request))})
