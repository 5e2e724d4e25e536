"""Requests over HTTP that go on without their connection: those that ask for it, and those that come too late."""

from __future__ import annotations

from os import urandom
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tailrace.api.resumable import PING, copy
from tailrace.api.sse import EventStream
from tailrace.api.state import AppState
from tailrace.api.wire import header, leavers, while_connected
from tailrace.control.answering.answering import Answering
from tailrace.control.answering.routes import FOR_JOBS
from tailrace.control.deferred.book import Wanted, streamed
from tailrace.control.deferred.standing import REQUEST, RESPONSE, Standing
from tailrace.errors import InvalidRequest, RequestError, TailraceError, Unavailable
from tailrace.protocol.body import parse
from tailrace.protocol.responses.answer import response_body

OVERFLOW = "x-tailrace-overflow"
_WISHES = ("refuse", "job")
_TOO_LATE = frozenset(("deadline_unattainable", "queue_too_long", "queue_deadline"))  # codes of refusals


class FollowReply(Response):
    """A deferred request's events as they come. What a Response prepares is never used."""

    def __init__(self, state: AppState, standing: Standing, after: int) -> None:
        """Raises NotFound where what follows that event is gone."""
        state.deferred.check(standing, after)
        self._interval = state.config.api.ping_interval
        self._events = state.deferred.follow(standing, after, self._interval)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        out = EventStream(send, [], PING)
        await out.open()
        await while_connected(receive, copy(self._events, out), leavers(scope, 0))


async def background(state: AppState, answering: Answering, body: bytes) -> Standing:
    """A response that is made without its connection. Raises TailraceError."""
    parsed = await answering.read(body)
    tenant = answering.sender.principal.tenant
    served = answering.check(parsed)
    await answering.route.recall(parsed, state.responses, tenant)  # what it goes on from is there
    shown, items = parsed.shown(served.name), parsed.own_items(answering.id)
    begun = response_body(answering.id, int(state.clock.wall()), "queued", shown)
    about = {"response": begun, "items": items}
    wanted = Wanted(
        answering.id, RESPONSE, answering.sender.principal, "/v1/responses", served.name, streamed(body), about,
        parsed.webhook, followed=bool(parsed.stream),
    )  # fmt: skip
    return await state.deferred.add(wanted)


def overflow_wish(scope: Scope) -> str | None:
    """Raises InvalidRequest."""
    value = header(scope, OVERFLOW.encode())
    if value is not None and value not in _WISHES:
        raise InvalidRequest(f"the header {OVERFLOW} is {value[:40]!a}; expected 'job' or 'refuse'", param=OVERFLOW)
    return value


async def overflow(
    state: AppState, answering: Answering, request: Request, body: bytes, error: TailraceError
) -> Standing | None:
    """A job in the place of a refusal for want of time; None where that was not wanted, or cannot be kept.

    Raises InvalidRequest, QueueFull."""
    parsed, path = answering.parsed, request.scope["path"]
    if error.code not in _TOO_LATE or parsed is None or path not in FOR_JOBS or not state.keeping.wanted:
        return None
    principal = answering.sender.principal
    wish = overflow_wish(request.scope) or parsed.overflow or state.pipeline.tenants[principal.tenant].overflow
    if wish != "job":
        return None
    served = state.models.find(parsed.model, principal.tenant)
    about = {"model": served.name, "reason": error.code, **_predicted(error)}
    body = _followable(state, answering, body)
    job_id = f"job_{urandom(16).hex()}"
    try:
        return await state.deferred.add(
            Wanted(job_id, REQUEST, principal, path, served.name, body, about, parsed.webhook)
        )
    except Unavailable:
        return None


def accepted(standing: Standing) -> Response:
    """Told of a request that has become a job."""
    shown = standing.shown()
    return Response(orjson.dumps(shown), 202, {"location": shown["poll_url"]}, media_type="application/json")


def _predicted(error: TailraceError) -> dict[str, Any]:
    """Seconds to the first token or the start, and how many were allowed."""
    detail = error.detail
    name = "predicted_ttft_s" if error.code == "deadline_unattainable" else "predicted_wait_s"
    return {name: detail.get("value"), "limit_s": detail.get("limit")}


def _followable(state: AppState, answering: Answering, body: bytes) -> bytes:
    """Asking for a stream, where such a body may."""
    if answering.route.vectors:
        return body
    served = state.models.find(answering.parsed.model, answering.sender.principal.tenant)
    limits = state.limits_of(answering.sender.principal, served.name, served.loaded)
    try:
        parse(answering.route.shape, streamed(body)).check(limits)
    except RequestError:
        return body
    return streamed(body)
