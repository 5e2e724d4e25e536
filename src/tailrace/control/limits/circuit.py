"""Whether a store that failed is worth asking again: one caller finds out, the others do not wait for it."""

from __future__ import annotations

import logging

from tailrace.clock import Clock

log = logging.getLogger(__name__)


class Circuit:
    """Closed at first. A failure opens it for `pause` seconds on the clock; then one call in each pause may try, until
    one succeeds."""

    def __init__(self, clock: Clock, pause: float) -> None:
        self._clock = clock
        self._pause = pause
        self._until: float | None = None  # nobody asks before; None: closed

    def allows(self) -> bool:
        """Whether to ask now. Who is allowed says afterwards how it went."""
        if self._until is None:
            return True
        if self._clock.now() < self._until:
            return False
        self._until = self._clock.now() + self._pause  # for the others, while this one tries
        return True

    def succeeded(self) -> None:
        if self._until is not None:
            log.warning("limits: Redis answers again")
        self._until = None

    def failed(self, error: BaseException) -> None:
        if self._until is None:
            log.warning("limits: Redis does not answer (%s); asked again every %g s", error, self._pause)
        self._until = self._clock.now() + self._pause
