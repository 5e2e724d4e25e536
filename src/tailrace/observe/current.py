"""Which request the code that runs now works for, so that a log line of its says so without being told."""

from __future__ import annotations

from contextvars import ContextVar


class Current:
    """Little, since whatever is begun in a request keeps it: a timer, a task."""

    __slots__ = ("request_id", "tenant")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.tenant = ""  # while it is not known


# Set by the edge: each request has a task, and so a context, of its own.
CURRENT: ContextVar[Current] = ContextVar("request")


def begin(request_id: str) -> None:
    CURRENT.set(Current(request_id))


def identified(tenant: str) -> None:
    """It is known who asks."""
    current = CURRENT.get(None)
    if current is not None:
        current.tenant = tenant


def about() -> dict[str, str]:
    """`request_id`, and `tenant` once it is known; nothing outside of requests."""
    current = CURRENT.get(None)
    if current is None:
        return {}
    found = {"request_id": current.request_id}
    return {**found, "tenant": current.tenant} if current.tenant else found
