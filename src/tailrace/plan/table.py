"""A simulation's numbers for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tailrace.figures.table import cell, number, numbers_table

Data = dict[str, Any]
LATENCIES = (("queue_ms", "queue"), ("ttft_ms", "TTFT"), ("tpot_ms", "TPOT"), ("e2e_ms", "end to end"))
POINTS = ("p50", "p95", "p99")
MOST_TENANTS = 12


def show(console: Console, data: Data) -> None:
    console.print(Group(*_parts(data)))


def _parts(data: Data) -> Iterator[RenderableType]:
    summary = data["summary"]
    yield Text(_headline(summary), style="bold")
    yield _latencies(summary["latency"])
    yield _groups("class", summary["classes"])
    yield _groups("prompt", summary["lengths"])
    if len(summary["tenants"]) > 1:
        yield _groups("tenant", dict(list(summary["tenants"].items())[:MOST_TENANTS]))
        if len(summary["tenants"]) > MOST_TENANTS:
            yield Text(f"... and {len(summary['tenants']) - MOST_TENANTS} smaller tenants", style="dim")
    if summary["jain"] is not None:
        yield Text(f"Jain index of served cost: {summary['jain']:.3f}")
    if summary["refusals"]["by_reason"]:
        yield Text(_refusals(summary["refusals"]))
    if summary["prediction"] is not None:
        off = summary["prediction"]
        yield Text(f"TTFT foretold at the door: off by {off['p50']:.0%} (P50), {off['p95']:.0%} (P95)")
    yield Text(_engine(summary["engine"]))
    yield Text(_machine(data), style="dim")


def _headline(summary: Data) -> str:
    parts = [
        f"{summary['answered']} of {summary['requests']} requests answered in {summary['seconds']:.1f} simulated s",
        f"{summary['requests_per_s']:.2f} requests/s",
        f"{summary['input_tokens_per_s']:.1f} in + {summary['output_tokens_per_s']:.1f} out tokens/s",
    ]
    if summary["attainment"] is not None:
        parts.append(f"goodput {summary['goodput_per_s']:.2f}/s ({summary['attainment']:.1%} meet the SLO)")
    return ", ".join(parts)


def _latencies(latency: Data) -> Table:
    table = numbers_table("milliseconds", "mean", *POINTS, "max")
    for key, name in (*LATENCIES, ("worst_gap_ms", "worst gap")):
        if latency[key] is not None:
            table.add_row(name, *(number(latency[key][point]) for point in ("mean", *POINTS, "max")))
    return table


def _groups(first: str, groups: Data) -> Table:
    columns = [f"{name} {point}" if point == "p50" else point for _, name in LATENCIES[:3] for point in ("p50", "p99")]
    table = numbers_table(first, "requests", "refused", *columns, "SLO")
    for name, group in groups.items():
        cells = [cell(group[key], point) for key, _ in LATENCIES[:3] for point in ("p50", "p99")]
        met = "" if group["attainment"] is None else f"{group['attainment']:.1%}"
        table.add_row(name or "all", str(group["requests"]), str(group["requests"] - group["answered"]), *cells, met)
    return table


def _refusals(refusals: Data) -> str:
    reasons = ", ".join(f"{reason} {count}" for reason, count in refusals["by_reason"].items())
    told = refusals["retry_after_s"]
    waits = "" if told is None else f"; Retry-After p50 {told['p50']:.1f} s, p99 {told['p99']:.1f} s"
    obeyed = f"; {refusals['let_in']} of {refusals['obeyed']} came back in time" if refusals["obeyed"] else ""
    return f"refusals: {reasons}{waits}{obeyed}; {refusals['never_answered']} never answered"


def _engine(engine: Data) -> str:
    return (
        f"engine: busy {engine['busy']:.1%}, {engine['steps']} steps of {engine['rows_per_step']:.1f} rows and "
        f"{engine['tokens_per_step']:.1f} tokens, prefix hits {engine['hit_ratio']:.1%}, thrash {engine['thrash']:.2%} "
        f"({engine['preemptions']} preemptions)"
    )


def _machine(data: Data) -> str:
    numbers = ", ".join(f"{value:.3g}" for value in data["machine"]["coefficients"])
    rate = data["summary"]["engine"]["row_decisions"] / max(data["took_s"], 1e-3)
    return (
        f"step times {data['machine']['said']} ({numbers}); {rate:,.0f} row-decisions/s; seed {data['options']['seed']}"
    )
