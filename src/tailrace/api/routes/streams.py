"""Streams that are read on over another connection (ours)."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.auth import authorize, principal_of
from tailrace.api.openapi import errors
from tailrace.api.resumable import StreamReply, last_event
from tailrace.api.state import state_of
from tailrace.api.table import Table
from tailrace.errors import NotFound

routes = Table("streams", prefix="/v1/streams", guard=authorize)


@routes.get("/{stream_id}", response_class=Response, responses=errors(400, 401, 403, 404))
async def resume(request: Request, stream_id: str) -> Response:
    """A stream that was asked for with `x-tailrace-resumable: true`, from behind the event that `Last-Event-ID` names,
    or from its beginning."""
    state = state_of(request)
    stream = state.streams.find(principal_of(request).tenant, stream_id)
    if stream is None:
        raise NotFound(f"There is no stream {stream_id[:80]!a}, or it is forgotten", param="stream_id")
    return StreamReply(state, stream, last_event(request.scope))
