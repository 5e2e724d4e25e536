"""Requests that became jobs because they could not be served in time (ours)."""

from __future__ import annotations

import orjson
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.auth import authorize, principal_of
from tailrace.api.deferral import FollowReply
from tailrace.api.openapi import errors
from tailrace.api.plain import json_reply
from tailrace.api.resumable import last_event
from tailrace.api.state import state_of
from tailrace.api.table import Table
from tailrace.control.deferred.standing import REQUEST, Standing
from tailrace.errors import InvalidRequest, NotFound
from tailrace.protocol.responses.page import Page, listed

routes = Table("jobs", prefix="/v1/jobs", guard=authorize)


@routes.get("", responses=errors(400, 401, 403, 503))
async def jobs(request: Request) -> Response:
    """The tenant's jobs, the newest first, without their results; `limit`, `after`."""
    asked = Page.newest_first(request.query_params)
    found = await state_of(request).deferred.page(principal_of(request).tenant, asked.after, asked.limit + 1)
    if found is None:
        raise InvalidRequest(f"after is {(asked.after or '')[:80]!a}, which no job here has", param="after")
    return json_reply(listed([each.shown(result=False) for each in found], asked.limit))


@routes.get("/{job_id}", responses=errors(401, 403, 404, 503))
async def job(request: Request, job_id: str) -> Response:
    """How it stands, and once it has ended the answer that its route would have given, in `result`."""
    return json_reply((await _standing(request, job_id)).shown())


@routes.get("/{job_id}/result", responses=errors(401, 403, 404, 503))
async def result(request: Request, job_id: str) -> Response:
    """That answer alone, with its own status."""
    standing = await _standing(request, job_id)
    answer = standing.result()
    if answer is None:
        raise NotFound(f"Job {job_id[:80]!a} is {standing.status}: it has no answer", param="job_id", code="no_result")
    return Response(orjson.dumps(answer["body"]), answer["status_code"], media_type="application/json")


@routes.get("/{job_id}/stream", response_class=Response, responses=errors(400, 401, 403, 404, 503))
async def stream(request: Request, job_id: str) -> Response:
    """The events that its route would have sent, from behind the one that `Last-Event-ID` names."""
    standing = await _standing(request, job_id)
    return FollowReply(state_of(request), standing, last_event(request.scope))


@routes.post("/{job_id}/cancel", responses=errors(401, 403, 404, 503))
async def cancel(request: Request, job_id: str) -> Response:
    """End it, if it has not ended."""
    standing = await _standing(request, job_id)
    return json_reply((await state_of(request).deferred.cancel(standing)).shown())


async def _standing(request: Request, job_id: str) -> Standing:
    found = await state_of(request).deferred.find(principal_of(request).tenant, REQUEST, job_id)
    if found is None:
        raise NotFound(f"There is no job {job_id[:80]!a}", param="job_id")
    return found
