"""Metric families whose values are plain numbers: written on the event loop without locks, shown at a scrape.

The library's own counters and histograms lock and search at each addition, which a request would pay a dozen times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tailrace.figures.buckets import REQUEST_SECONDS, Buckets

Labels = tuple[str, ...]
PREFIX = "tailrace_"


class Counts(Collector):
    """A counter with labels; `at[values] += n` counts."""

    def __init__(self, name: str, text: str, labels: Labels) -> None:
        self.at: defaultdict[Labels, float] = defaultdict(float)
        self._name, self._text, self._labels = name, text, labels

    def collect(self) -> Iterator[Metric]:
        yield counter(self._name, self._text, self._labels, self.at)


class Histograms(Collector):
    """A histogram with labels; `at[values].add(x)` counts."""

    def __init__(self, name: str, text: str, labels: Labels, bounds: tuple[float, ...] = REQUEST_SECONDS) -> None:
        self.at: defaultdict[Labels, Buckets] = defaultdict(partial(Buckets, bounds))
        self._name, self._text, self._labels, self._bounds = name, text, labels, bounds

    def collect(self) -> Iterator[Metric]:
        yield histogram(self._name, self._text, self._labels, self.at)

    def text(self) -> str:
        """What the library would write of it, in a twentieth of the time: histograms are nearly all of a scrape. May be
        called from any thread."""
        name = PREFIX + self._name
        ends = _ends(self._bounds)
        lines = [f"# HELP {name} {self._text}", f"# TYPE {name} histogram"]
        for at, buckets in tuple(self.at.items()):
            labels = ",".join([f'{label}="{_escaped(value)}"' for label, value in zip(self._labels, at, strict=True)])
            counts = buckets.up_to()
            begin = f'{name}_bucket{{{labels},le="'
            lines += [f'{begin}{end}"}} {count}' for end, count in zip(ends, counts, strict=True)]
            lines += [f"{name}_count{{{labels}}} {counts[-1]}", f"{name}_sum{{{labels}}} {buckets.sum}"]
        return "\n".join([*lines, ""])


def counter(name: str, text: str, labels: Labels, values: Mapping[Labels, float]) -> Metric:
    """`name` without `_total`."""
    family = CounterMetricFamily(PREFIX + name, text, labels=labels)
    for at, value in tuple(values.items()):
        family.add_metric(at, value)
    return family


def gauge(name: str, text: str, labels: Labels, values: Mapping[Labels, float]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for at, value in values.items():
        family.add_metric(at, value)
    return family


def histogram(name: str, text: str, labels: Labels, found: Mapping[Labels, Buckets]) -> Metric:
    family = HistogramMetricFamily(PREFIX + name, text, labels=labels)
    for at, buckets in tuple(found.items()):
        family.add_metric(at, list(zip(_ends(buckets.bounds), buckets.up_to(), strict=True)), buckets.sum)
    return family


def _ends(bounds: tuple[float, ...]) -> list[str]:
    return [*(f"{bound:g}" for bound in bounds), "+Inf"]


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def summed(of: Iterable[tuple[Labels, float]]) -> dict[Labels, float]:
    """Values of the same labels added."""
    sums: defaultdict[Labels, float] = defaultdict(float)
    for at, value in of:
        sums[at] += value
    return dict(sums)
