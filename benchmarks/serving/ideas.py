"""What each idea of scheduling buys, on one trace: the classics, and one idea more in each row.

    python -m benchmarks.serving.ideas TRACE [--rate-scale X] [--length-scale X] [--requests N] ...

Prints the table of docs/simulator.md. Everything is simulated with the same step times, arrivals, lengths and seed.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.config import Config, ControlConfig, EngineConfig
from tailrace.figures.slo import Slo, parse_slo
from tailrace.plan.baselines import Classic
from tailrace.plan.clients import Habits
from tailrace.plan.simulator import Outcome, Setup, simulate
from tailrace.plan.summary import summarize
from tailrace.plan.workload import Scale
from tailrace.traces import read_trace

WINDOW = 0.1
COLUMNS = ("", "goodput/s", "meet the SLO", "TTFT P50", "P99", "TPOT P50", "P99", "worst gap P99", "last end")


@dataclass(frozen=True, slots=True)
class Idea:
    name: str
    classic: tuple[str, ...] = ()
    prefix_cache: bool = False


LADDER = (
    Idea("static batches, whole prompts, memory for the longest answer", ("static", "unchunked", "reserve")),
    Idea("dynamic batches (100 ms window)", ("dynamic", "unchunked", "reserve")),
    Idea("continuous batching", ("unchunked", "reserve")),
    Idea("+ paged KV, taken as it is needed", ("unchunked",)),
    Idea("+ prompts in chunks under a step budget"),
    Idea("+ prefix cache", prefix_cache=True),
)


def setup(options: argparse.Namespace, idea: Idea) -> Setup:
    engine = EngineConfig(max_sequences=options.max_sequences, prefix_cache=idea.prefix_cache)
    control = ControlConfig(max_waiting_requests=100_000, max_waiting_tokens=1 << 40)
    return Setup(
        config=Config(engine=engine, control=control),
        scale=Scale(options.rate_scale, options.length_scale, limit=options.requests, max_output=options.max_tokens),
        habits=Habits(options.max_tokens),
        classic=Classic.of(idea.classic, WINDOW),
        kv_tokens=options.kv_tokens,
        seed=options.seed,
    )


def row(idea: Idea, outcome: Outcome, slo: Slo) -> str:
    found = summarize(outcome, slo)
    latency = found["latency"]

    def cell(name: str, point: str) -> str:
        return _time(latency[name][point])

    cells = [
        idea.name, f"{found['goodput_per_s']:.2f}", f"{found['attainment']:.0%}",
        cell("ttft_ms", "p50"), cell("ttft_ms", "p99"), cell("tpot_ms", "p50"), cell("tpot_ms", "p99"),
        cell("worst_gap_ms", "p99"), f"{outcome.seconds:.0f} s",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def _time(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.1f} s" if milliseconds >= 1000 else f"{milliseconds:.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    numbers: dict[str, Any] = {
        "--rate-scale": 1.0, "--length-scale": 1.0, "--requests": 1000, "--max-tokens": 128, "--kv-tokens": 16_384,
        "--max-sequences": 32, "--seed": 0,
    }  # fmt: skip
    for flag, default in numbers.items():
        parser.add_argument(flag, type=type(default), default=default)
    parser.add_argument("--slo", default="ttft=2s,tpot=200ms")
    options = parser.parse_args()
    rows, slo = read_trace(options.trace, "TRACE"), parse_slo(options.slo)
    print("| " + " | ".join(COLUMNS) + " |")
    print("|---" + "|---:" * (len(COLUMNS) - 1) + "|")
    for idea in LADDER:
        print(row(idea, simulate(rows, setup(options, idea)), slo), flush=True)


if __name__ == "__main__":
    main()
