"""Recorded traffic of many clients, simulated: who is served what, beside first come, first served.

    python -m benchmarks.serving.replays FOLDER [--requests 1200] [--load 1.2]

FOLDER holds public traces: `servegen_*.csv`, which say what client each request is of, and `mooncake_*.jsonl`, which
say what prompts share. Lengths are scaled by --length-scale and cut to --max-input and --max-output, arrivals are
stretched so that what is asked for is --load times what the simulated machine can do. Figures are of the moment of
the last arrival, when most wait:

- fair: Jain's index of served cost over the max-min share of each client's demand; 1 is max-min fair
- Jain: the same of served cost alone, which nothing can bring to 1 while clients ask for different amounts

Of Mooncake, requests that share text with others are one tenant, "returning"; the rest are another, "single".
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.serving.scenarios import FCFS, UNBOUNDED, plane, tail

from tailrace.config import Config
from tailrace.figures.numbers import quantile
from tailrace.plan.baselines import Classic
from tailrace.plan.simulator import Outcome, Setup, simulate
from tailrace.plan.summary import jain
from tailrace.plan.workload import Scale
from tailrace.traces import TraceRow, read_trace

REAL = Classic()
ENOUGH = 20  # requests of a client whose tail is looked at
SAMPLE = 100  # requests by which the machine's capacity is found


@dataclass(frozen=True, slots=True)
class Way:
    name: str
    classic: Classic = REAL
    prefix_cache: bool = True


WAYS = (Way("fair"), Way("first come", FCFS))
CACHES = (*WAYS, Way("fair, no prefix cache", prefix_cache=False))


def played(rows: Sequence[TraceRow], way: Way, scale: Scale, load: float) -> Outcome:
    """The rate is that of the machine with everything, so that all ways are asked for the same."""
    made = _setup(WAYS[0], scale)
    burst = [replace(row, arrival=0.0) for row in rows[:: max(len(rows) // SAMPLE, 1)]]
    most = len(burst) / simulate(burst, replace(made, scale=replace(scale, limit=None))).seconds
    rate = len(rows) / (rows[-1].arrival or 1.0)
    return simulate(rows, _setup(way, replace(scale, rate=load * most / rate)))


def _setup(way: Way, scale: Scale) -> Setup:
    made = plane(UNBOUNDED, classic=way.classic, scale=scale)
    engine = replace(made.config.engine, prefix_cache=way.prefix_cache)
    return replace(made, config=Config(engine, made.config.control, policy=made.config.policy))


def clients(outcome: Outcome) -> dict[str, float]:
    """Of a trace with clients. Tails are of the time to the first token, of clients with enough requests."""
    records = outcome.records
    counts = Counter(record.client for record in records)
    tails = sorted(tail(records, name) for name, count in counts.items() if count >= ENOUGH)
    served, wanted = at_the_end(outcome)
    shares = max_min(wanted, sum(served.values()))
    return {
        "clients": len(counts),
        "fair": jain([served.get(name, 0.0) / share for name, share in shares.items() if share > 0]) or 0.0,
        "jain": jain([served.get(name, 0.0) for name in counts]) or 0.0,
        "worst_p99": tails[-1],
        "median_p99": quantile(tails, 0.5),
        "all_p50": quantile(sorted(record.ttft or 0.0 for record in records if record.ok), 0.5),
    }


def tenants(outcome: Outcome) -> dict[str, float]:
    """Of a trace whose prompts share text."""
    last = max(record.arrival for record in outcome.records)
    served, _ = at_the_end(outcome)
    found = {"jain": jain(list(served.values())) or 0.0}
    for name in ("returning", "single"):
        mine = [record for record in outcome.records if record.client == name and record.ok]
        prompts = sum(record.prompt_tokens for record in mine) or 1
        found |= {
            f"{name}_hits": sum(record.cached_tokens for record in mine) / prompts,
            f"{name}_cost_per_1k": 1000 * sum(record.cost for record in mine) / prompts,
            f"{name}_answered": sum((record.end or 0.0) <= last for record in mine),
            f"{name}_p50": tail(mine, name, part=0.5) if mine else 0.0,
            f"{name}_p99": tail(mine, name) if mine else 0.0,
        }
    return found


def at_the_end(outcome: Outcome) -> tuple[dict[str, float], dict[str, float]]:
    """What each client was served by the last arrival, and what it had asked for; device-seconds."""
    last = max(record.arrival for record in outcome.records)
    served = next((sample for at, sample in outcome.served if at >= last), outcome.served[-1][1])
    wanted: Counter[str] = Counter()
    for record in outcome.records:
        wanted[record.client] += record.cost  # type: ignore[assignment]
    return served, dict(wanted)


def max_min(wanted: Mapping[str, float], total: float) -> dict[str, float]:
    """Shares of the total: nobody gets more than it wants, and what small ones leave goes to the others evenly."""
    shares: dict[str, float] = {}
    for place, (name, amount) in enumerate(sorted(wanted.items(), key=lambda item: item[1])):
        shares[name] = min(amount, total / (len(wanted) - place))
        total -= shares[name]
    return shares


def sharing(rows: Sequence[TraceRow]) -> list[TraceRow]:
    """With the two tenants. The first block is in all of Mooncake's conversations, and so is no sign."""
    seen: Counter[int] = Counter(row.blocks[1] for row in rows if len(row.blocks) > 1)
    names = ("returning" if len(row.blocks) > 1 and seen[row.blocks[1]] > 1 else "single" for row in rows)
    return [replace(row, client=name) for row, name in zip(rows, names, strict=True)]


def show(name: str, found: Mapping[str, float]) -> None:
    print(f"{name:48}" + "  ".join(f"{key} {value:.3g}" for key, value in found.items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--requests", type=int, default=1200, help="the first ones of each trace")
    parser.add_argument("--load", type=float, default=1.2)
    parser.add_argument("--length-scale", type=float, default=1 / 8)
    parser.add_argument("--max-input", type=int, default=2048)
    parser.add_argument("--max-output", type=int, default=64)
    options = parser.parse_args()
    scale = Scale(length=options.length_scale, max_input=options.max_input, max_output=options.max_output)
    for file in sorted(options.folder.glob("servegen_*.csv")):
        rows = read_trace(file)[: options.requests]
        for way in WAYS:
            show(f"{file.stem}, {way.name}", clients(played(rows, way, scale, options.load)))
    for file in sorted(options.folder.glob("mooncake_*.jsonl")):
        rows = sharing(read_trace(file)[: options.requests])
        for way in CACHES:
            show(f"{file.stem}, {way.name}", tenants(played(rows, way, scale, options.load)))


if __name__ == "__main__":
    main()
