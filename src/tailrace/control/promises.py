"""Places that refused requests were promised: who comes back when it was told goes before who comes for the first time.

A request that cannot start in time is refused and told when it could. In a crowd all would be told the same moment, and
whoever arrives just then would take the place. So each is told a moment behind those that were told before it, and who
was promised nothing is let in only as far as it leaves the promised ones their places. A request is known again by its
tenant and prompt. Tenants are apart: between them the fair order decides. Nobody has to come back: a place is kept for
two seconds, and all that are kept are worth half of the time that a newcomer may wait: there is always work.
Owns what was promised; refuses nobody.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

from tailrace.control.admission import Admit, Decision, Forecast, Reject, Terms, Wait
from tailrace.frozen import frozen
from tailrace.types import Tokens

_KEPT = 2.0  # seconds, of which Retry-After's rounding takes one
_MARGIN = 0.1  # of the bound, by which promised ones should find less than it
_MOST_KEPT = 0.5  # of the bound
_MOST = 1024  # promises of a tenant that are kept
_DUE = attrgetter("due")


@frozen
class Promise:
    """`prompt`: a hash of it; `seconds` that the machine will be with it; `due` on the clock."""

    prompt: int
    seconds: float
    due: float


@dataclass(slots=True)
class _Line:
    """One tenant's. `end`: when the next may come, behind all of them."""

    end: float = 0.0
    promises: list[Promise] = field(default_factory=list)  # the earliest first

    def of(self, prompt: int) -> Promise | None:
        return next((one for one in self.promises if one.prompt == prompt), None)

    def behind(self, early: float, seconds: float) -> float:
        """When the next may come, not before `early`."""
        due = max(early, self.end)
        if len(self.promises) < _MOST:
            self.end = due + seconds
        return due

    def expire(self, now: float) -> None:
        """Places that have been kept for long enough: who was told to come behind them could have come sooner."""
        gone = bisect_left(self.promises, now - _KEPT, key=_DUE)
        self.end -= sum(one.seconds for one in self.promises[:gone])
        del self.promises[:gone]

    def keep(self, promise: Promise) -> None:
        if len(self.promises) < _MOST:
            insort(self.promises, promise, key=_DUE)

    def kept(self, now: float, bound: float) -> float:
        """Seconds of work that must fit within `bound` besides what waits; the machine works until they come."""
        work = most = 0.0
        for one in self.promises:
            if one.due > now + bound:
                break
            work += one.seconds
            most = max(most, work - max(one.due - now, 0.0))
        return min(most + _MARGIN * bound, _MOST_KEPT * bound) if work else 0.0


class Promises:
    """Of one backend, whose time they are in."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}

    def visit(self, tenant: str, prompt: Tokens, now: float) -> Visit:
        """A request is here and will be decided about."""
        line = self._lines.get(tenant)
        if line is None:
            return Visit(self, tenant, prompt, now)
        line.expire(now)
        if not line.promises and line.end <= now:
            del self._lines[tenant]
        return Visit(self, tenant, prompt, now, line)

    def line(self, tenant: str) -> _Line:
        return self._lines.setdefault(tenant, _Line())


class Visit:
    """A request at the moment when it is decided about."""

    def __init__(self, promises: Promises, tenant: str, prompt: Tokens, now: float, line: _Line | None = None) -> None:
        """`line`: of what its tenant was promised, if there is any."""
        self._promises = promises
        self._tenant = tenant
        self._prompt = prompt
        self._now = now
        self._line = line
        self._promise = None if line is None else line.of(_key(prompt))

    def forecast(self, known: Forecast, terms: Terms) -> Forecast:
        """What it has to expect. A newcomer: as if those were here that will have come before it would start."""
        if self._line is None or (self._promise is not None and self._promise.due <= self._now):
            return known
        kept = self._line.kept
        wait, ttft = (0.0 if bound is None else kept(self._now, bound) for bound in (terms.queue, terms.ttft))
        return Forecast(known.wait + wait, known.ttft + ttft)

    def over(self, decision: Decision) -> None:
        """What it was told to come for is decided, and nothing was late."""
        if self._line is not None and self._promise is not None and isinstance(decision, Admit | Wait):
            self._line.promises.remove(self._promise)

    def come_back(self, late: Reject, seconds: float, spread: Callable[[float], float]) -> float:
        """It is refused for being late: seconds after which it should come, for when it has a place. It would keep the
        machine for `seconds`. One that has come too early, or in vain, keeps its turn."""
        line = self._promises.line(self._tenant)
        due = self._now + (late.retry_after or 0.0) + _MARGIN * late.bound
        if self._promise is None:
            due = line.behind(due, seconds)
        else:
            due = max(due, self._promise.due)
            line.promises.remove(self._promise)
        told = spread(due - self._now)
        line.keep(Promise(_key(self._prompt), seconds, self._now + told))
        return told


def _key(prompt: Tokens) -> int:
    return hash(prompt.tobytes())
