"""The last quarter of slots and KV memory is kept for tenants that have their part of them to claim.

Without it a tenant with many requests holds all slots, and one that comes now and then waits for an answer to end
before its own can start. So, while somebody who came lately holds less than its part by weight, who holds its own part
or more starts nothing while three quarters are taken. Who waits has such a claim if it came to wait lately, and as far
as the fair order lets it pass: between those that always wait, the order by cost alone decides. One request may reach
into the last quarter of the memory: it is looked at, not fitted in. Owns who came lately and what they would be due;
counts what it is shown.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from typing import Protocol

_LATELY = 300.0  # seconds for which a tenant that left may come again
_OPEN = 0.75  # part of slots and memory that is open to everyone

NOBODY: frozenset[str] = frozenset()


class Line(Protocol):
    """Those that wait."""

    @property
    def tenants(self) -> int: ...
    def waits(self, tenant: str) -> bool: ...
    def passes(self, tenants: frozenset[str]) -> bool:
        """Whether somebody else waits who may start before them."""
        ...


class Holder(Protocol):
    """A started request."""

    @property
    def tenant(self) -> str: ...
    @property
    def open_choices(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def generated(self) -> int: ...


class Reserve:
    def __init__(self, slots: int, kv_tokens: int) -> None:
        """`kv_tokens` 0: memory is not known, and not looked at."""
        self._there = (slots, kv_tokens)
        self._came: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tenant: when, weight; the latest last
        self._weight = 0.0

    def came(self, tenant: str, weight: float, now: float) -> None:
        """A request of it came."""
        self._weight += weight - self._came.pop(tenant, (0.0, 0.0))[1]
        self._came[tenant] = (now, weight)
        while now - next(iter(self._came.values()))[0] > _LATELY:
            _, (_, gone) = self._came.popitem(last=False)
            self._weight -= gone

    def held(self, running: Iterable[Holder], line: Line) -> frozenset[str]:
        """Tenants that may start nothing now."""
        if len(self._came) < 2:
            return NOBODY
        uses: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        for run in running:
            use = uses[run.tenant]
            use[0] += run.open_choices
            use[1] += run.prompt_tokens + run.generated
        held = NOBODY
        for kind, there in enumerate(self._there):
            if there and sum(use[kind] for use in uses.values()) >= _OPEN * there:
                full = frozenset(name for name, use in uses.items() if use[kind] >= self._part(name) * there)
                if self._claimed(full, line):
                    held |= full
        return held

    def _claimed(self, full: frozenset[str], line: Line) -> bool:
        """Whether somebody who is not `full` is away, or waits and may go first."""
        away = len(self._came) - line.tenants - sum(not line.waits(name) for name in full)
        return away > 0 or line.passes(full)

    def _part(self, tenant: str) -> float:
        return self._came.get(tenant, (0.0, 0.0))[1] / self._weight
