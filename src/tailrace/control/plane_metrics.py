"""What a scrape shows of the serving plane: who runs, who waits and since when, how right predictions have been.

Read from the live state at the scrape; nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tailrace.control.classes import RequestClass
from tailrace.control.waiting import class_scope
from tailrace.figures.buckets import Buckets
from tailrace.observe.families import Labels, gauge, histogram

if TYPE_CHECKING:
    from tailrace.control.pipeline import Pipeline


class PlaneMetrics(Collector):
    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def collect(self) -> Iterator[Metric]:
        plane = self._pipeline
        yield gauge("requests_running", "Requests that a backend works on", (), {(): plane.running})
        yield gauge("requests_waiting", "Requests accepted and not started", (), {(): plane.waiting})
        yield gauge("draining", "1 when the server stops and takes no new work", (), {(): int(plane.draining)})
        yield from self._queues()
        yield from self._predictions()
        fairness = plane.served.index(lambda name: plane.tenants[name].weight, plane.clock.now())
        yield gauge("fairness_index", "Jain's index of what tenants got lately for their weight", (), {(): fairness})

    def _queues(self) -> Iterator[Metric]:
        """Classes in which nobody waits are there too, with 0."""
        plane, now = self._pipeline, self._pipeline.clock.now()
        waiting: dict[Labels, float] = {(name,): plane.waiters.of(class_scope(name))[0] for name in RequestClass}
        yield gauge("queue_requests", "Requests of a class that wait for limits or the machine", ("class",), waiting)
        oldest: dict[Labels, float] = {(name,): 0.0 for name in RequestClass}
        for run in plane.waiting_runs():
            at, age = (run.ticket.request_class,), now - run.ticket.arrival
            oldest[at] = max(oldest[at], age)
        yield gauge("queue_oldest_seconds", "Since when the oldest of them waits", ("class",), oldest)

    def _predictions(self) -> Iterator[Metric]:
        recent: dict[Labels, float] = {
            (name, f"p{100 * part:.0f}"): ratio for name, part, ratio in self._pipeline.quantiles()
        }
        text = "What requests took over what was predicted"
        yield gauge("prediction_ratio", f"{text}, of recent ones", ("quantity", "percentile"), recent)
        seen: dict[Labels, Buckets] = {}
        for lane in self._pipeline.lanes:
            for quantity, errors in lane.foresight.errors.items():
                seen[lane.model, quantity] = errors.seen
        yield histogram("actual_over_predicted", text, ("model", "quantity"), seen)
