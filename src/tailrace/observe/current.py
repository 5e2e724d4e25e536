"""Which request the code that runs now works for, so that a log line of its says so without being told."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

# The state of the request's scope, set by the edge: each request has a task, and so a context, of its own.
CURRENT: ContextVar[Mapping[str, Any]] = ContextVar("request")


def current() -> dict[str, str]:
    """`request_id`, and `tenant` once it is known; nothing outside of requests."""
    state = CURRENT.get(None)
    if state is None:
        return {}
    found = {"request_id": str(state["request_id"])}
    principal = state.get("principal")
    return found if principal is None else {**found, "tenant": principal.tenant}
