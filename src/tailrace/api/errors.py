"""Every failure as an error body of its API with its own status; nothing of the inside leaks."""

from __future__ import annotations

import math

import orjson
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from tailrace.errors import InternalError, RequestError, TailraceError, Unauthorized
from tailrace.protocol.messages.errors import error_body

MESSAGES = "/v1/messages"  # below it everything speaks Anthropic's API


def of_messages(scope: Scope) -> bool:
    path: str = scope["path"]
    return path == MESSAGES or path.startswith(MESSAGES + "/")


def error_response(scope: Scope, error: TailraceError) -> Response:
    headers = {}
    if error.retry_after is not None:
        headers["retry-after"] = str(max(math.ceil(error.retry_after), 1))
    elif error.status in (429, 503):
        headers["x-should-retry"] = "false"  # clients of OpenAI's and Anthropic's obey it
    if isinstance(error, Unauthorized):
        headers["www-authenticate"] = "Bearer"
    body = error.body()
    if of_messages(scope):
        body = error_body(error, scope["state"]["request_id"])
    return Response(orjson.dumps(body), error.status, headers, media_type="application/json")


def http_error_response(scope: Scope, error: HTTPException) -> Response:
    """What the router refuses: no such route, wrong method."""
    path, method = ascii(scope["path"][:200])[1:-1], scope["method"]
    text = {
        404: f"There is no route {path}; /docs lists them all",
        405: f"{path} does not take {method}",
    }.get(error.status_code, str(error.detail))
    refusal = RequestError(text)
    refusal.status = error.status_code
    response = error_response(scope, refusal)
    response.headers.update(error.headers or {})
    return response


def internal_error() -> InternalError:
    return InternalError("The request could not be completed because of an internal error")
