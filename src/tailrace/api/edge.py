"""The outermost layer of a request: opens its Timeline, gives it an id, and is the last to catch what went wrong."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable
from os import urandom

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tailrace.api.errors import error_response, http_error_response, internal_error, of_messages
from tailrace.api.headers import trail
from tailrace.api.state import AppState
from tailrace.api.table import Endpoint
from tailrace.api.wire import ClientGone
from tailrace.errors import TailraceError
from tailrace.observe import current
from tailrace.observe.ended import Ended, outcome_of
from tailrace.observe.timeline import Timeline
from tailrace.observe.trace_context import TraceContext

log = logging.getLogger(__name__)

_SAFE_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class Edge:
    """`request.state` gets `tailrace`, `timeline`, `request_id` and `headers`; answers get `x-request-id` (the caller's
    own if it is sane) and what `headers.trail` says. When a request has ended, the plane's watchers are told."""

    def __init__(self, app: ASGIApp, state: AppState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(reversed(scope["headers"]))  # the first of each name counts
        request_id = _request_id(headers.get(b"x-request-id"))
        timeline = Timeline(self._state.clock)
        scope["app"] = self  # the router raises what it refuses
        scope.setdefault("state", {}).update(
            tailrace=self._state, timeline=timeline, request_id=request_id, headers=headers
        )
        current.begin(request_id)
        if self._state.trace_ratio is not None:
            timeline.facts["trace"] = TraceContext.of(scope["headers"], self._state.trace_ratio)
        status = 0  # of the answer, once it has begun
        method = scope["method"]
        bodiless = method == "HEAD"
        if bodiless:  # what GET would answer, without its body
            scope = {**scope, "method": "GET"}

        def send_with_id(message: Message) -> Awaitable[None]:  # no coroutine of its own around each event's
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = [(b"x-request-id", request_id.encode()), *trail(timeline)]
                if of_messages(scope):
                    own.append((b"request-id", request_id.encode()))  # the name that Anthropic's clients know
                message["headers"] = [*message.get("headers", ()), *own]
            elif bodiless:
                message["body"] = b""
            return send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except ClientGone:
            return  # there is nobody to tell
        except Exception as error:
            if status or not isinstance(error, TailraceError | HTTPException):
                log.exception("request %s failed", request_id)
            if status:
                raise  # the server closes the connection: the client must not take half an answer for a whole one
            if isinstance(error, TailraceError):
                if timeline.outcome is None:  # no route has accounted for it
                    self._state.metrics.failed(error)
                timeline.failed(error)
            await _refusal(scope, error)(scope, receive, send_with_id)
        finally:
            if self._state.plane.watchers:
                timeline.close(outcome_of(status))  # those of the generating routes are
                self._tell(scope, method, status)

    def _tell(self, scope: Scope, method: str, status: int) -> None:
        state, endpoint = scope["state"], scope.get("endpoint")
        path = endpoint.path if isinstance(endpoint, Endpoint) else ""
        tenant = state["principal"].tenant if "principal" in state else ""
        wall = self._state.clock.wall()
        self._state.plane.tell(Ended(state["request_id"], method, path, status, tenant, state["timeline"], wall))


def _refusal(scope: Scope, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return http_error_response(scope, error)
    return error_response(scope, error if isinstance(error, TailraceError) else internal_error())


def _request_id(asked: bytes | None) -> str:
    if asked is not None and _SAFE_ID.fullmatch(asked):
        return asked.decode()
    return f"req-{urandom(16).hex()}"
