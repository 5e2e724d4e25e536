"""A report for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tailrace.figures.table import cell, number, numbers_table

Data = dict[str, Any]
LATENCIES = (
    ("ttft_ms", "TTFT"),
    ("tpot_ms", "TPOT"),
    ("worst_gap_ms", "worst gap"),
    ("gap_ms", "gaps"),
    ("e2e_ms", "end to end"),
    ("queue_ms", "queue (server)"),
)
RUN_COLUMNS = ("sent", "failed", "req/s", "out/s", "TTFT p50", "p95", "TPOT p50", "p95", "good/s", "SLO")


def show(console: Console, data: Data) -> None:
    """Everything a report's `data()` has to say to people."""
    console.print(Group(*_parts(data)))


def _parts(data: Data) -> Iterator[RenderableType]:
    runs = data["runs"]
    if data["knee"] is not None or len(runs) > 1:
        yield _runs_table(data)
    if runs and data["knee"] is None:
        yield from _run_parts(runs[-1])
    if data["knee"] is not None:
        yield _knee(data["knee"])
    yield Text(f"seed {data['options']['seed']}", style="dim")
    for note in data["notes"]:
        yield Text(f"note: {note}", style="yellow")


def _run_parts(run: Data) -> Iterator[RenderableType]:
    summary = run["summary"]
    yield Text(_headline(summary), style="bold")
    yield Text(_token_line(summary["tokens"]))
    yield _latency_table(summary)
    if len(summary["buckets"]) > 1:
        yield _bucket_table(summary["buckets"])
    if summary["errors"]:
        yield _error_table(summary)


def _headline(summary: Data) -> str:
    rates = summary["throughput"]
    parts = [
        f"{summary['answered']} of {summary['requests']} requests answered in {summary['seconds']:.2f} s",
        f"{rates['requests_per_s']:.2f} requests/s",
        f"{rates['input_tokens_per_s']:.1f} in + {rates['output_tokens_per_s']:.1f} out tokens/s",
    ]
    if summary["attainment"] is not None:
        parts.append(f"goodput {summary['goodput_per_s']:.2f}/s ({summary['attainment']:.1%} meet the SLO)")
    return ", ".join(parts)


def _token_line(tokens: Data) -> str:
    by = ", ".join(f"{name} {count}" for name, count in tokens["counted_by"].items())
    prompt = f"{tokens['prompt']} prompt ({tokens['cached']} cached)"
    return f"tokens: {prompt}, {tokens['output']} answer; counted by {by or 'nobody'}"


def _latency_table(summary: Data) -> Table:
    table = numbers_table("milliseconds", "mean", "p50", "p95", "p99", "max")
    rows = [(name, summary["latency"][key]) for key, name in LATENCIES]
    rows.append(("dispatch lag", summary["dispatch_lag_ms"]))
    for name, values in rows:
        if values is not None:
            table.add_row(name, *(number(values[key]) for key in ("mean", "p50", "p95", "p99", "max")))
    return table


def _bucket_table(buckets: Data) -> Table:
    table = numbers_table("prompt", "requests", "errors", "TTFT p50", "p95", "p99", "TPOT p50", "p95", "gap p95", "SLO")
    for name, values in buckets.items():
        cells = [cell(values["ttft_ms"], key) for key in ("p50", "p95", "p99")]
        cells += [cell(values["tpot_ms"], key) for key in ("p50", "p95")]
        cells.append(cell(values["worst_gap_ms"], "p95"))
        met = "" if values["attainment"] is None else f"{values['attainment']:.1%}"
        table.add_row(name, str(values["requests"]), str(values["errors"]), *cells, met)
    return table


def _error_table(summary: Data) -> Table:
    table = Table("error", "count", "for example", box=None, pad_edge=False)
    for name, count in summary["errors"].items():
        table.add_row(Text(name, style="red"), str(count), Text(summary["error_examples"].get(name, "")[:100]))
    return table


def _runs_table(data: Data) -> Table:
    """Narrow enough for 80 columns."""
    knee = data["knee"]
    table = numbers_table("load" if knee else "run", *RUN_COLUMNS)
    for run in sorted(data["runs"], key=lambda run: run["load"] or 0) if knee else data["runs"]:
        summary = run["summary"]
        latency, rates = summary["latency"], summary["throughput"]
        cells = [f"{run['load']:g}" if knee else run["label"], str(summary["requests"])]
        cells += [str(sum(summary["errors"].values())), f"{rates['requests_per_s']:.2f}"]
        cells.append(f"{rates['output_tokens_per_s']:.1f}")
        cells += [cell(latency[metric], key) for metric in ("ttft_ms", "tpot_ms") for key in ("p50", "p95")]
        met = summary["attainment"] is not None
        cells += [f"{summary['goodput_per_s']:.2f}", f"{summary['attainment']:.1%}"] if met else ["", ""]
        table.add_row(*cells, style="bold green" if knee and run["load"] == knee["load"] else None)
    return table


def _knee(knee: Data) -> Text:
    found = "none" if knee["load"] is None else f"{knee['unit']} {knee['load']:g}"
    return Text(f"knee: {found} ({knee['rule']})", style="bold")
