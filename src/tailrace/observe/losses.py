"""What could not be told, counted: it shows on /metrics that a trace or a log line is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector


class Losses(Collector):
    """`counts`: by what was lost, read at scrape time."""

    def __init__(self, counts: Mapping[str, Callable[[], int]]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "tailrace_observations_lost", "What was not told because its receiver was away or slow", labels=["what"]
        )
        for what, count in self._counts.items():
            family.add_metric([what], count())
        yield family
