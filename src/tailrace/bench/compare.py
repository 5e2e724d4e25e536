"""Two results side by side: ratios with both values, and whether the difference is more than the noise of repeats."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tailrace.frozen import frozen

Data = dict[str, Any]
POINTS = ("p50", "p95", "p99")
LATENCIES = ("ttft_ms", "tpot_ms", "worst_gap_ms", "e2e_ms")
RATES = ("requests_per_s", "output_tokens_per_s", "input_tokens_per_s")
SAME_LOAD = ("workload", "input", "output", "concurrency", "rate", "arrival", "trace", "speedup", "length_scale",
             "prefixes", "prefix_tokens", "turns", "mix", "prompts", "natural_end")  # fmt: skip


@frozen
class Difference:
    """`a`, `b`: medians over the runs of each. `noise`: whether the runs' ranges overlap; None with one run each."""

    name: str
    a: float
    b: float
    noise: bool | None

    @property
    def ratio(self) -> float | None:
        return self.b / self.a if self.a else None

    @property
    def verdict(self) -> str:
        if self.noise is None:
            return "noise unknown"
        return "within noise" if self.noise else "differs"


def differences(a: Data, b: Data) -> list[Difference]:
    """Of every number that both have."""
    left, right = _values(a), _values(b)
    return [_difference(name, left[name], right[name]) for name in left if name in right]


def cautions(a: Data, b: Data) -> Iterator[str]:
    """Why the two may not be comparable."""
    for name in SAME_LOAD:
        if a["options"].get(name) != b["options"].get(name):
            flag = "--" + name.replace("_", "-")
            yield f"different load: {flag} {a['options'].get(name)} against {b['options'].get(name)}"
    if min(len(a["runs"]), len(b["runs"])) < 2:
        yield "one run says nothing about noise: measure both with --repeats 3"
    for letter, data in (("A", a), ("B", b)):
        failed = sum(sum(run["summary"]["errors"].values()) for run in data["runs"])
        if failed:
            yield f"{letter} had {failed} errors: its latencies are those of the answered requests alone"


def show_comparison(console: Console, a: Data, b: Data) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    for column in ("A", "B", "B / A", ""):
        table.add_column(column, justify="right")
    for found in differences(a, b):
        ratio = "" if found.ratio is None else f"{found.ratio:.3f}"
        style = "bold" if found.noise is False else None
        table.add_row(found.name, f"{found.a:.2f}", f"{found.b:.2f}", ratio, found.verdict, style=style)
    console.print(table)
    for caution in cautions(a, b):
        console.print(Text(f"note: {caution}", style="yellow"))


def _difference(name: str, left: list[float], right: list[float]) -> Difference:
    noise = None
    if len(left) > 1 and len(right) > 1:
        noise = min(left) <= max(right) and min(right) <= max(left)
    return Difference(name, median(left), median(right), noise)


def _values(data: Data) -> dict[str, list[float]]:
    """Each number's value in every run that has it."""
    found: dict[str, list[float]] = {}
    for run in data["runs"]:
        for name, value in _numbers(run["summary"]):
            found.setdefault(name, []).append(value)
    return found


def _numbers(summary: Data) -> Iterator[tuple[str, float]]:
    for metric in LATENCIES:
        values = summary["latency"][metric]
        if values is not None:
            for point in POINTS:
                yield f"{metric.removesuffix('_ms').replace('_', ' ')} {point} (ms)", values[point]
    for metric in RATES:
        yield metric.replace("_per_s", "/s").replace("_", " "), summary["throughput"][metric]
    if summary["attainment"] is not None:
        yield "goodput/s", summary["goodput_per_s"]
        yield "SLO attainment", summary["attainment"]
