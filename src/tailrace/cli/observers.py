"""Who a server tells of each request's end: the log, and a collector where one is configured."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tailrace.observe.logs.logs import Logs
from tailrace.observe.otel.collector import Collector
from tailrace.observe.otel.telemetry import Telemetry

if TYPE_CHECKING:
    from tailrace.api.state import AppState

_FLUSH = 3.0  # seconds that a collector gets for what is left at the end


class Observers:
    def __init__(self, logs: Logs, collector: Collector | None) -> None:
        self._logs = logs
        self._collector = collector
        self._telemetry: Telemetry | None = None

    def watch(self, state: AppState) -> None:
        """From now on, and show on /metrics what they had to leave out."""
        from tailrace.observe.losses import Losses

        lost: dict[str, Callable[[], int]] = {"log_lines": lambda: self._logs.writer.lost}
        plane = state.plane
        if self._logs.watches:
            plane.watchers = (*plane.watchers, self._logs)
        if self._collector is not None:
            ratio = state.config.observe.trace_ratio
            self._telemetry = telemetry = Telemetry(self._collector, ratio)
            telemetry.start()
            plane.watchers, state.trace_ratio = (*plane.watchers, telemetry), ratio
            lost["traces"] = lambda: telemetry.lost
        state.metrics.show(Losses(lost))

    def close(self) -> None:
        """Blocks, while the collector is told the last."""
        if self._telemetry is not None:
            self._telemetry.close(_FLUSH)
