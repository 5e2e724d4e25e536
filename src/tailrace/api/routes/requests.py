"""What became of a tenant's own requests, and what it says of them."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.auth import authorize, principal_of
from tailrace.api.openapi import body_schema, errors
from tailrace.api.plain import body_of, json_reply
from tailrace.api.state import state_of
from tailrace.api.table import Table
from tailrace.database.entry_id import is_entry_id
from tailrace.errors import InvalidRequest, NotFound
from tailrace.protocol.body import parse
from tailrace.protocol.feedback import Feedback
from tailrace.protocol.responses.page import Page, listed

_JSON: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {}}}}

routes = Table("requests", prefix="/v1", guard=authorize)


@routes.get("/requests", responses={**_JSON, **errors(400, 401, 403, 503)})
async def latest(request: Request) -> Response:
    """Ours: the latest requests of one's own, newest first: `limit` to 100, `after` the `last_id` of the last page."""
    asked = Page.newest_first(request.query_params)
    after = asked.after or ""
    if after and not is_entry_id(after):
        raise InvalidRequest(f"after is {after[:80]!a}; expected is the last_id of the page before", param="after")
    found = await state_of(request).history.latest(principal_of(request).tenant, asked.limit + 1, after)
    return json_reply(listed(found, asked.limit, "entry_id"))


@routes.get("/requests/{request_id}", responses={**_JSON, **errors(401, 403, 404, 503)})
async def shown(request: Request, request_id: str) -> Response:
    """Ours: why a request of one's own went the way it did, by the `x-request-id` of its answer or the answer's id."""
    found = await state_of(request).history.find(principal_of(request).tenant, request_id)
    if found is None:
        raise _unknown(request_id)
    return json_reply(found)


@routes.post("/feedback", responses={**_JSON, **errors(400, 401, 403, 404, 503)}, openapi_extra=body_schema(Feedback))
async def comment(request: Request) -> Response:
    """Ours: say whether a request of one's own served its purpose. Again: in the place of what was said before."""
    asked = parse(Feedback, await body_of(request))
    found = await state_of(request).history.comment(principal_of(request).tenant, asked.request_id, asked.said())
    if found is None:
        raise _unknown(asked.request_id)
    return json_reply({"object": "feedback", "request_id": found["id"], **found["feedback"]}, asked)


def _unknown(name: str) -> NotFound:
    return NotFound(f"There is no record of a request {name[:80]!a}", param="request_id")
