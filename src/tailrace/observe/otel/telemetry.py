"""Ended requests on their way to a collector: a bounded queue, and one thread that makes spans and sends them.

The event loop only puts a request into the queue. Whatever becomes of the collector, requests do not wait for it and
memory is bounded: what finds the queue full, or is not taken, is lost, counted, and said once.
"""

from __future__ import annotations

import logging
from collections import deque
from threading import Event, Thread
from typing import TYPE_CHECKING

from tailrace.observe.ended import Ended
from tailrace.observe.otel.collector import Collector
from tailrace.observe.trace_context import TraceContext

if TYPE_CHECKING:
    from tailrace.observe.otel.sdk import Sdk

log = logging.getLogger(__name__)

QUEUE = 2048  # requests, of some kilobytes each
_BATCH = 64  # requests whose spans go together
_SPANS_EVERY = 1.0  # seconds
_METRICS_EVERY = 15  # rounds of that
_TIMEOUT = 5.0  # seconds for an export


class Telemetry:
    """A watcher of ends. `start()`, and `close()` in the end. `lost` counts requests."""

    def __init__(
        self, collector: Collector, ratio: float = 1.0, *, every: float = _SPANS_EVERY, timeout: float = _TIMEOUT
    ) -> None:
        self.lost = 0
        self._collector = collector
        self._ratio = ratio
        self._every = every
        self._timeout = timeout
        self._queue: deque[Ended] = deque()
        self._stir = Event()
        self._closing = False
        self._failing = False
        self._sdk: Sdk | None = None
        self._thread = Thread(target=self._run, name="telemetry", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def __call__(self, ended: Ended) -> None:
        if ended.probe:
            return
        if len(self._queue) >= QUEUE:
            self.lost += 1
            return
        self._queue.append(ended)
        if len(self._queue) == QUEUE // 2:
            self._stir.set()

    def close(self, patience: float) -> None:
        """Send what is there, for at most that many seconds. Blocks."""
        self._closing = True
        self._stir.set()
        self._thread.join(patience)
        if self._thread.is_alive() and self._sdk is not None:
            self._sdk.stop()
            log.warning("the collector %r is too slow: the last %d traces are lost", self._collector, len(self._queue))

    # --- in the thread

    def _run(self) -> None:
        from tailrace.observe.otel.sdk import Sdk  # noqa: PLC0415 - half a second that no start shall wait for

        self._sdk = sdk = Sdk(self._collector, self._timeout)
        rounds, last = 0, False
        while not last:
            self._stir.wait(self._every)
            self._stir.clear()
            rounds, last = rounds + 1, self._closing
            self._round(sdk, metrics=last or rounds % _METRICS_EVERY == 0)
        sdk.stop()

    def _round(self, sdk: Sdk, *, metrics: bool) -> None:
        try:
            self._send(sdk)
            if metrics:
                sdk.send_metrics()
        except Exception:  # one odd request must not end it for all
            log.exception("telemetry: a round failed")

    def _send(self, sdk: Sdk) -> None:
        """Everything that is in the queue now. Once the collector has not taken a part, the rest is not tried."""
        ends = [self._queue.popleft() for _ in range(len(self._queue))]
        for ended in ends:
            sdk.meter.record(ended)
        chosen = [(ended, context) for ended in ends if (context := self._chosen(ended)) is not None]
        for first in range(0, len(chosen), _BATCH):
            part = chosen[first : first + _BATCH]
            if not sdk.send_spans([span for ended, context in part for span in sdk.maker.spans(ended, context)]):
                self._missed(len(chosen) - first)
                return
            self._taken()

    def _chosen(self, ended: Ended) -> TraceContext | None:
        """None when its trace is not sent. What went wrong or came too late always is, unless its caller traces and
        has not chosen it."""
        facts = ended.timeline.facts
        context = facts.get("trace")
        if not isinstance(context, TraceContext):
            context = TraceContext.of((), self._ratio)
        if context.chosen or (not context.parent and (ended.outcome == "error" or ended.late)):
            return context
        return None

    def _missed(self, requests: int) -> None:
        self.lost += requests
        if not self._failing:
            log.warning(
                "the collector %r does not take traces: those of requests are lost, and counted", self._collector
            )
        self._failing = True

    def _taken(self) -> None:
        if self._failing:
            log.warning("the collector %r takes traces again; %d were lost so far", self._collector, self.lost)
        self._failing = False
