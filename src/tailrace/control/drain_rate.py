"""How fast requests and their prompt tokens leave: measured over the recent past, for Retry-After."""

from __future__ import annotations

from collections import deque
from math import sqrt
from typing import NamedTuple

_WINDOW = 30.0  # seconds of history that count
_KEEP = 256  # completions remembered at most
_REMEMBERED = 8  # completions that an earlier busy time counts for at most, in the next one


class _Pace(NamedTuple):
    """Completions in so much busy time, and their prompt tokens."""

    requests: float
    tokens: float
    seconds: float


_SURE = 1.28  # standard deviations: nine times in ten they have left by then, were they to leave independently
_UNKNOWN = _Pace(1.0, 0.0, 0.0)  # one completion is assumed, so that an estimate exists from the start


class DrainRate:
    """Completions over busy time, some of the busy time before among them: the first of a burst are refused before any
    of it has completed. The estimate falls while nothing completes."""

    def __init__(self) -> None:
        self._done: deque[tuple[float, int]] = deque()  # the last _KEEP at most
        self._tokens = 0  # of those
        self._busy_since: float | None = None
        self._before = _UNKNOWN

    def busy(self, now: float) -> None:
        """Work is there from now on, if it was not already."""
        if self._busy_since is None:
            self._busy_since = now

    def idle(self) -> None:
        """What was is over, at the time of the last completion; its pace is remembered."""
        if self._done:
            self._before = self._remembered(self._done[-1][0])
            self._done.clear()
            self._tokens = 0
        self._busy_since = None

    def completed(self, now: float, prompt_tokens: int) -> None:
        if len(self._done) == _KEEP:
            self._forget()
        self._done.append((now, prompt_tokens))
        self._tokens += prompt_tokens

    def seconds_for(self, requests: float, tokens: int, now: float) -> float:
        """Time until that many more requests, and that many prompt tokens, have left, in all likelihood: who comes back
        when they should have left on average comes too early half of the time."""
        left = self._pace(now)
        if tokens > 0 and left.tokens:
            requests = max(requests, tokens * left.requests / left.tokens)
        return (requests + _SURE * sqrt(requests)) * left.seconds / left.requests

    def _remembered(self, now: float) -> _Pace:
        pace = self._pace(now)
        if self._before is _UNKNOWN:
            pace = pace._replace(requests=pace.requests - _UNKNOWN.requests)
        part = min(_REMEMBERED / pace.requests, 1.0)
        return _Pace(part * pace.requests, part * pace.tokens, part * pace.seconds)

    def _pace(self, now: float) -> _Pace:
        while self._done and self._done[0][0] < now - _WINDOW:
            self._forget()
        before = self._before
        return _Pace(before.requests + len(self._done), before.tokens + self._tokens, before.seconds + self._span(now))

    def _forget(self) -> None:
        """The oldest."""
        self._tokens -= self._done.popleft()[1]

    def _span(self, now: float) -> float:
        since = self._busy_since if self._busy_since is not None else now
        full = len(self._done) == _KEEP
        begin = self._done[0][0] if full else max(since, now - _WINDOW)
        return max(now - begin, 0.0)
