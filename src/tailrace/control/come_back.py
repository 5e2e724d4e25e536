"""When a refused caller should come back: how fast its own work leaves, and how many were told to come before it.

Each refused request is promised a place of its own, later than the one before, so that a crowd that was refused
together does not return together. A little seeded jitter on top spreads those who were promised the same. Nobody is
told to stay away longer than ten minutes: by then the pace is another one, and who left may have made room.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from tailrace.control.admission import Reject
from tailrace.control.drain_rate import DrainRate

_JITTER = 0.1
_LEAST, _MOST = 0.001, 600.0  # seconds
ALL = "all"


class _Drain:
    """One scope: its pace, and what has been promised and has not left room yet."""

    def __init__(self) -> None:
        self.rate = DrainRate()
        self.requests = 0
        self.tokens = 0

    def completed(self, now: float, prompt_tokens: int) -> None:
        self.rate.completed(now, prompt_tokens)
        self.requests = max(self.requests - 1, 0)
        self.tokens = max(self.tokens - prompt_tokens, 0)

    def idle(self) -> None:
        self.rate.idle()
        self.requests = self.tokens = 0


class ComeBack:
    """Scopes are `all` and one for each tenant, by the names of `admission.Standing`."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._drains: dict[str, _Drain] = {ALL: _Drain()}

    def busy(self, scopes: Iterable[str], now: float) -> None:
        for scope in scopes:
            self._of(scope).rate.busy(now)

    def completed(self, scopes: Iterable[str], now: float, prompt_tokens: int) -> None:
        for scope in scopes:
            self._of(scope).completed(now, prompt_tokens)

    def idle(self) -> None:
        """Nothing is left to do, for nobody."""
        for drain in self._drains.values():
            drain.idle()

    def seconds(self, reject: Reject, tenant: str, now: float) -> float:
        """For a refusal at a bound. `tenant`: the caller's scope, whose pace counts unless all are in the way."""
        drain = self._drains.get(ALL if reject.scope == ALL else tenant) or self._drains[ALL]
        requests, tokens = reject.lacking_requests + drain.requests, reject.lacking_tokens
        if tokens:
            tokens += drain.tokens
        seconds = drain.rate.seconds_for(requests, tokens, now)
        drain.requests += max(reject.lacking_requests, 1)
        drain.tokens += reject.lacking_tokens
        return self.spread(seconds)

    def _of(self, scope: str) -> _Drain:
        found = self._drains.get(scope)
        if found is None:
            found = self._drains[scope] = _Drain()
        return found

    def spread(self, seconds: float) -> float:
        return min(max(seconds, _LEAST), _MOST) * (1.0 + _JITTER * self._rng.random())
