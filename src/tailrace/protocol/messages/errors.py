"""Errors as Anthropic's API writes them, by status. `param`, `code`, `retry_after_ms` and `detail` are ours."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from tailrace.errors import TailraceError

_TYPES = MappingProxyType(
    {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        405: "invalid_request_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
    }
)


def error_body(error: TailraceError, request_id: str | None = None) -> dict[str, Any]:
    """`request_id` where there is a place for it: not in a stream."""
    ours: Any = error.body()["error"]
    kept = {key: value for key, value in ours.items() if key not in ("message", "type") and value is not None}
    shown = {"type": _TYPES.get(error.status, "api_error"), "message": error.message, **kept}
    body: dict[str, Any] = {"type": "error", "error": shown}
    return body if request_id is None else {**body, "request_id": request_id}
