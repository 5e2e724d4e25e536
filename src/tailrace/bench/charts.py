"""What is drawn of a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tailrace.figures import chart
from tailrace.figures.chart import MOST_POINTS, Chart, Points, cumulated

Data = dict[str, Any]


def charts(data: Data) -> list[Chart]:
    """A sweep's curves; else distributions of each latency (one line for each run) and the course of the last run."""
    if data["knee"] is not None:
        return list(_sweep_charts(data))
    runs = [run for run in data["runs"] if run["summary"]["answered"]]
    return [*_distributions(runs), *(_course(runs[-1]) if runs else ())]


def draw(path: Path, data: Data) -> None:
    """Write `path`, whose ending says how. Raises ConfigError."""
    title = f"tailrace bench: {data['server'].get('shape', {}).get('model', '')} at {data['server'].get('url', '')}"
    chart.draw(path, title, charts(data), data["notes"])


def _distributions(runs: list[Data]) -> Iterator[Chart]:
    latencies: dict[str, Callable[[Data], list[float]]] = {
        "time to first token": lambda r: [r["first_ms"] - r["scheduled_ms"]],
        "mean time per token": _tpot,
        "gaps between pieces": lambda r: r["gaps_ms"],
        "end to end": lambda r: [r["end_ms"] - r["scheduled_ms"]],
    }
    for title, values in latencies.items():
        lines = {run["label"]: _cumulated(run["requests"], values) for run in runs}
        lines = {label: points for label, points in lines.items() if points}
        if lines:
            yield Chart(f"{title}: part of all below", "ms", "part", lines)


def _tpot(request: Data) -> list[float]:
    tokens = request["output_tokens"]
    return [(request["end_ms"] - request["first_ms"]) / (tokens - 1)] if tokens > 1 else []


def _cumulated(requests: list[Data], values: Callable[[Data], list[float]]) -> Points:
    return cumulated(value for request in requests if request["error"] is None for value in values(request))


def _course(run: Data) -> Iterator[Chart]:
    """Requests that were open and time to first token, over the run."""
    answered = [request for request in run["requests"] if request["error"] is None]
    changes = sorted(
        [(r["sent_ms"] / 1000, 1) for r in answered] + [(r["end_ms"] / 1000, -1) for r in answered],
    )
    level, points = 0, []
    for moment, change in changes:
        level += change
        points.append((moment, float(level)))
    step = max(1, len(points) // MOST_POINTS)
    yield Chart("open requests over the run", "s", "requests", {run["label"]: points[::step]})
    first = sorted((r["scheduled_ms"] / 1000, r["first_ms"] - r["scheduled_ms"]) for r in answered)
    step = max(1, len(first) // MOST_POINTS)
    yield Chart("time to first token over the run", "s", "ms", {run["label"]: first[::step]}, dots=True)


def _sweep_charts(data: Data) -> Iterator[Chart]:
    runs = sorted((run for run in data["runs"] if run["load"] is not None), key=lambda run: run["load"])
    unit, mark = data["knee"]["unit"], data["knee"]["load"]

    def line(value: Callable[[Data], float | None]) -> Points:
        pairs = [(run["load"], value(run["summary"])) for run in runs]
        return [(float(load), number) for load, number in pairs if number is not None]

    def latency(metric: str) -> dict[str, Points]:
        def point(name: str) -> Points:
            return line(lambda summary: (summary["latency"][metric] or {}).get(name))

        return {name: point(name) for name in ("p50", "p95", "p99")}

    output = {"output tokens/s": line(lambda s: s["throughput"]["output_tokens_per_s"])}
    yield Chart("throughput", unit, "output tokens/s", output, mark, dots=True)
    yield Chart("time to first token", unit, "ms", latency("ttft_ms"), mark, dots=True)
    yield Chart("mean time per token", unit, "ms", latency("tpot_ms"), mark, dots=True)
    met = line(lambda s: s["goodput_per_s"])
    if met:
        rates = {"requests/s": line(lambda s: s["throughput"]["requests_per_s"]), "goodput/s": met}
        yield Chart("requests that met the SLO", unit, "requests/s", rates, mark, dots=True)
