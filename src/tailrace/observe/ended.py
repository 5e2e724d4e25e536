"""A request after its end, over HTTP or a job's line: what traces, logs and whoever else looks at ends are given."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.frozen import frozen
from tailrace.observe.timeline import Timeline
from tailrace.observe.timings import deadline_met

# Of a request that no generating route has judged, by its status.
_OUTCOMES = {0: "cancelled", 429: "rejected", 503: "rejected"}

_ERRORS = {"cancelled": "cancelled", "error": "internal_error"}  # of an outcome that nobody gave a reason for
_PROBES = ("/health/live", "/health/ready", "/metrics")


@frozen
class Ended:
    """`path` is the route's, with the names of its parameters; empty where there is no such route. `status` 0: no
    answer was begun. `tenant`: empty where the caller is not known. `wall`: of the end, in seconds since the epoch. A
    line of a `job` has no `method`. The timeline is closed."""

    request_id: str
    method: str
    path: str
    status: int
    tenant: str
    timeline: Timeline
    wall: float
    job: str = ""

    @property
    def outcome(self) -> str:
        return self.timeline.outcome or ""

    @property
    def error(self) -> str:
        """The code of what went wrong, or else the status; empty where nothing did."""
        if self.outcome == "ok":
            return ""
        return str(self.timeline.facts.get("error") or _ERRORS.get(self.outcome) or self.status)

    @property
    def probe(self) -> bool:
        """Whether a machine only looked, as it does every few seconds: no trace, no line."""
        return self.path in _PROBES

    @property
    def late(self) -> bool:
        """Whether its first token came after it was due."""
        return deadline_met(self.timeline) is False

    @property
    def opened_us(self) -> int:
        """When the socket delivered it, in microseconds since the epoch."""
        return round(self.wall * 1e6) - self.timeline.total()


Watcher = Callable[[Ended], None]  # on the event loop, for each request: it must take microseconds, and not raise


def outcome_of(status: int) -> str:
    if status in _OUTCOMES:
        return _OUTCOMES[status]
    if status < 400:
        return "ok"
    return "invalid" if status < 500 else "error"
