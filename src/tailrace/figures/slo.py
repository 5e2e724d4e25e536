"""Service-level objectives: bounds that one request meets or misses."""

from __future__ import annotations

from typing import Protocol

from tailrace.figures.quantities import seconds, wrong
from tailrace.frozen import frozen

FORM = "bounds on ttft, tpot, itl (worst gap) and e2e, such as ttft=500ms,tpot=50ms"


class Measured(Protocol):
    """Seconds; None where the answer has no such thing."""

    @property
    def ok(self) -> bool: ...
    @property
    def ttft(self) -> float | None: ...
    @property
    def tpot(self) -> float | None: ...
    @property
    def worst_gap(self) -> float | None: ...
    @property
    def e2e(self) -> float | None: ...


@frozen
class Slo:
    """Bounds in seconds; `itl` is on the worst gap between pieces of an answer."""

    ttft: float | None = None
    tpot: float | None = None
    itl: float | None = None
    e2e: float | None = None

    def __bool__(self) -> bool:
        return any(bound is not None for bound in (self.ttft, self.tpot, self.itl, self.e2e))

    def met(self, record: Measured) -> bool:
        """An error never meets; what a short answer does not have (a second token) cannot miss."""
        pairs = (
            (record.ttft, self.ttft),
            (record.tpot, self.tpot),
            (record.worst_gap, self.itl),
            (record.e2e, self.e2e),
        )
        return record.ok and all(value is None or bound is None or value <= bound for value, bound in pairs)


def parse_slo(text: str) -> Slo:
    """Raises ConfigError naming --slo."""
    bounds: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        if name not in ("ttft", "tpot", "itl", "e2e") or not value or name in bounds:
            raise wrong("--slo", text, FORM)
        bounds[name] = seconds(value, "--slo")
    return Slo(**bounds)
