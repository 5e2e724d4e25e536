"""What is done without the connection that asked for it, at a scrape: jobs, webhooks, streams that are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tailrace.clock import Clock
from tailrace.control.jobs.runner import JobRunner
from tailrace.control.streams import Streams
from tailrace.control.webhooks.deliveries import Deliveries
from tailrace.observe.families import counter, gauge

_LINES, _WEBHOOKS = ("done", "failed", "again"), ("delivered", "again", "failed")


class LaterMetrics(Collector):
    """What is in the database is as it was when this server looked last, some seconds ago."""

    def __init__(self, runner: JobRunner, deliveries: Deliveries, streams: Streams, clock: Clock) -> None:
        self._runner = runner
        self._deliveries = deliveries
        self._streams = streams
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        jobs, wall = self._runner.seen, self._clock.wall()
        waiting = sum(due.ready for due in jobs)
        states = Counter(waiting=waiting, running=len(jobs) - waiting)
        text = "Jobs that are not over; waiting: with lines that nobody runs"
        yield gauge("jobs", text, ("state",), _all(("waiting", "running"), states))
        oldest = max((wall - due.job.created for due in jobs), default=0.0)
        yield gauge("jobs_oldest_seconds", "Since the oldest of them was made", (), {(): oldest})
        yield gauge("job_lines_running", "Lines that run on this server", (), {(): self._runner.running})
        yield counter(
            "job_lines", "Attempts at lines that ended here; again: it is tried once more", ("result",),
            _all(_LINES, self._runner.ended),
        )  # fmt: skip
        yield counter(
            "webhooks", "Tries of webhooks by this server; again: it is tried once more, failed: never", ("result",),
            _all(_WEBHOOKS, self._deliveries.tried),
        )  # fmt: skip
        yield gauge("webhooks_pending", "Webhooks that are to be sent", (), {(): self._deliveries.pending})
        yield gauge("streams_kept", "Streams that can be read again", (), {(): len(self._streams)})
        yield gauge("streams_bytes", "Their events in memory", (), {(): self._streams.size})


def _all(names: tuple[str, ...], counts: Counter[str]) -> dict[tuple[str, ...], float]:
    """Those that there are none of too, so that a rate knows the first."""
    return {(name,): counts[name] for name in names}
