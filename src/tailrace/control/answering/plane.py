"""What answers are made with, the same for all who ask."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.clock import Clock
from tailrace.control.answering.limits import ModelLimits
from tailrace.control.models import Models
from tailrace.control.pipeline import Pipeline
from tailrace.control.responses import ResponseStore
from tailrace.observe.ended import Ended, Watcher
from tailrace.observe.entry import About, Entry, entry
from tailrace.observe.metrics import Metrics
from tailrace.observe.record import Records
from tailrace.observe.timeline import Timeline


@dataclass(slots=True)
class Plane:
    pipeline: Pipeline
    models: Models
    limits: ModelLimits
    responses: ResponseStore
    metrics: Metrics
    records: Records
    clock: Clock
    server: str  # this instance, in records of its requests
    watchers: tuple[Watcher, ...] = ()  # told of each request's end: over HTTP by the edge, of a job's line by that

    def account(self, about: About, timeline: Timeline) -> Entry:
        """Count a request whose timeline has closed. Returns what is to be remembered of it."""
        self.metrics.closed(timeline, about.route, about.tenant)
        made = entry(about, timeline, server=self.server, ended=self.clock.wall())
        self.records.add(made)
        return made

    def tell(self, ended: Ended) -> None:
        for watcher in self.watchers:
            watcher(ended)
