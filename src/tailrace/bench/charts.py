"""What is drawn of a report, as plain series: the same charts for the page (`svg`) and the picture (`png`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tailrace.bench.units import wrong
from tailrace.errors import ConfigError

Data = dict[str, Any]
Points = list[tuple[float, float]]
MOST_POINTS = 400  # of one line: more cannot be seen


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines by name over one pair of axes. `mark`: an x to point out. Lines of `dots` are drawn with their points."""

    title: str
    x: str
    y: str
    lines: dict[str, Points]
    mark: float | None = None
    dots: bool = False


def charts(data: Data) -> list[Chart]:
    """A sweep's curves; else distributions of each latency (one line for each run) and the course of the last run."""
    if data["knee"] is not None:
        return list(_sweep_charts(data))
    runs = [run for run in data["runs"] if run["summary"]["answered"]]
    return [*_distributions(runs), *(_course(runs[-1]) if runs else ())]


def check_plot(path: Path) -> None:
    """Raises ConfigError when `draw` could not write such a file."""
    if path.suffix not in (".html", ".png"):
        raise wrong("--plot", str(path), "a file ending in .html or .png")
    if path.suffix == ".png" and find_spec("matplotlib") is None:
        raise ConfigError(
            f"--plot {path}: pictures need matplotlib: pip install 'tailrace[plots]' (an .html file needs nothing)",
            param="--plot",
        )


def draw(path: Path, data: Data) -> None:
    """Write `path`, whose ending says how. Raises ConfigError."""
    check_plot(path)
    found = charts(data)
    title = f"tailrace bench: {data['server'].get('shape', {}).get('model', '')} at {data['server'].get('url', '')}"
    try:
        if path.suffix == ".png":
            from tailrace.bench.png import draw_png  # noqa: PLC0415 - matplotlib is an extra

            draw_png(path, title, found)
        else:
            from tailrace.bench.svg import page  # noqa: PLC0415

            path.write_text(page(title, found, data["notes"]), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--plot {path}: {error.strerror or error}", param="--plot") from error


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
    """The empirical distribution function, thinned evenly; both ends stay."""
    ordered = sorted(value for request in requests if request["error"] is None for value in values(request))
    last = len(ordered) - 1
    kept = range(last + 1) if last < MOST_POINTS else [round(i * last / MOST_POINTS) for i in range(MOST_POINTS + 1)]
    return [(ordered[i], (i + 1) / (last + 1)) for i in kept]


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
