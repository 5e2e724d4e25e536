"""A simulation's result as plain data: what the JSON file holds, and what the table and the charts read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tailrace.figures import chart
from tailrace.figures.chart import MOST_POINTS, Chart, Points, cumulated
from tailrace.figures.slo import Slo
from tailrace.plan.options import Options
from tailrace.plan.record import Record
from tailrace.plan.simulator import Outcome
from tailrace.plan.summary import summarize

FORMAT = 1
Data = dict[str, Any]
_TITLES = {
    "queue": "time in the queue",
    "ttft": "time to first token",
    "tpot": "mean time per token",
    "e2e": "end to end",
}


def data(trace: str, options: Options, outcome: Outcome, slo: Slo) -> Data:
    machine = outcome.setup.machine
    return {
        "tailrace_simulation": FORMAT,
        "trace": trace,
        "options": asdict(options),
        "machine": {"coefficients": machine.coefficients, "noise": machine.noise, "said": machine.said},
        "took_s": round(outcome.took, 3),
        "summary": summarize(outcome, slo),
        "requests": [_request(record) for record in outcome.records],
    }


def draw(path: Path, trace: str, outcome: Outcome) -> None:
    """Write `path`, whose ending says how. Raises ConfigError."""
    good = [record for record in outcome.records if record.ok]
    said = f"step times {outcome.setup.machine.said}; seed {outcome.setup.seed}"
    chart.draw(path, f"tailrace simulate: {trace}", [*_distributions(good), *_course(good)], [said])


def _request(record: Record) -> Data:
    found = asdict(record)
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in found.items()}


def _distributions(good: list[Record]) -> Iterator[Chart]:
    """One line for each class."""
    classes = sorted({record.request_class for record in good})
    for name, title in _TITLES.items():
        lines = {}
        for kind in classes:
            values = [getattr(record, name) for record in good if record.request_class == kind]
            found = [value * 1000 for value in values if value is not None]
            if found:
                lines[kind or "all"] = cumulated(found)
        if lines:
            yield Chart(f"{title}: part of all below", "ms", "part", lines)


def _course(good: list[Record]) -> Iterator[Chart]:
    changes = sorted([(r.arrival, 1) for r in good] + [(r.end or 0.0, -1) for r in good])
    level, points = 0, []
    for moment, change in changes:
        level += change
        points.append((moment, float(level)))
    if not points:
        return
    yield Chart("open requests over the simulation", "s", "requests", {"all": _thinned(points)})
    first = [(record.arrival, record.ttft * 1000) for record in good if record.ttft is not None]
    yield Chart("time to first token over the simulation", "s", "ms", {"all": _thinned(first)}, dots=True)


def _thinned(points: Points) -> Points:
    return points[:: max(1, len(points) // MOST_POINTS)]
