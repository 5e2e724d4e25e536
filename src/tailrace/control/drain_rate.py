"""How fast requests and their prompt tokens leave: measured over the recent past, for Retry-After."""

from __future__ import annotations

from collections import deque

_WINDOW = 30.0  # seconds of history that count
_KEEP = 256  # completions remembered at most


class DrainRate:
    """Completions over busy time. One completion is assumed at the end of the window, so that the estimate exists from
    the start and falls while nothing completes."""

    def __init__(self) -> None:
        self._done: deque[tuple[float, int]] = deque(maxlen=_KEEP)
        self._busy_since: float | None = None

    def busy(self, now: float) -> None:
        """Work is there from now on, if it was not already."""
        if self._busy_since is None:
            self._busy_since = now

    def idle(self) -> None:
        self._busy_since = None
        self._done.clear()

    def completed(self, now: float, prompt_tokens: int) -> None:
        self._done.append((now, prompt_tokens))

    def seconds_for(self, requests: int, tokens: int, now: float) -> float:
        """Time until that many more requests, and that many prompt tokens, have left."""
        while self._done and self._done[0][0] < now - _WINDOW:
            self._done.popleft()
        span = self._span(now)
        by_requests = requests * span / (len(self._done) + 1)
        moved = sum(tokens for _, tokens in self._done)
        by_tokens = tokens * span / moved if moved else by_requests
        return max(by_requests, by_tokens if tokens > 0 else 0.0)

    def _span(self, now: float) -> float:
        since = self._busy_since if self._busy_since is not None else now
        full = len(self._done) == self._done.maxlen
        begin = self._done[0][0] if full else max(since, now - _WINDOW)
        return max(now - begin, 0.0)
