"""Every failure as an OpenAI error body with its own status; nothing of the inside leaks."""

from __future__ import annotations

import math

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tailrace.errors import InternalError, TailraceError, Unauthorized


def error_response(error: TailraceError) -> Response:
    headers = {}
    if error.retry_after is not None:
        headers["retry-after"] = str(max(math.ceil(error.retry_after), 1))
    elif error.status in (429, 503):
        headers["x-should-retry"] = "false"  # clients of OpenAI's obey it
    if isinstance(error, Unauthorized):
        headers["www-authenticate"] = "Bearer"
    return Response(orjson.dumps(error.body()), error.status, headers, media_type="application/json")


def http_error_response(request: Request, error: HTTPException) -> Response:
    """What the router refuses: no such route, wrong method."""
    path, method = request.url.path[:200], request.method
    text = {
        404: f"There is no route {ascii(path)[1:-1]}; /docs lists them all",
        405: f"{ascii(path)[1:-1]} does not take {method}",
    }.get(error.status_code, str(error.detail))
    body = {"message": text, "type": "invalid_request_error", "param": None, "code": None}
    return Response(
        orjson.dumps({"error": body}), error.status_code, dict(error.headers or {}), media_type="application/json"
    )


def internal_error() -> InternalError:
    return InternalError("The request could not be completed because of an internal error")
