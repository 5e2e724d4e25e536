"""Is the predicted time to the first token right?  `python -m benchmarks.serving.foresight`

A mix of short, middle and long prompts arrives at parts of the server's capacity, below and above it. Each answer's
header says what was predicted when it was admitted; the error is |actual - predicted| / actual. The first requests of
a level, from which the server still learns, are shown apart.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.serving.live import Sample, capacity, quantile, report, served
from benchmarks.serving.scenarios import MIX


def errors(samples: Sequence[Sample]) -> list[float]:
    pairs = [(s.predicted, s.ttft) for s in samples if s.predicted is not None and s.ttft is not None]
    return [abs(actual - predicted) / actual for predicted, actual in pairs]


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    facts: dict[str, Any] = {"mix": MIX, "levels": {}}
    async with served("--no-prefix-cache") as client:
        await capacity(client, (120, 32), 4)
        rate = sum([await capacity(client, size, 6) ** -1 for size in MIX]) ** -1 * len(MIX)
        print(f"capacity: about {rate:.2f} of the mix a second", flush=True)
        for level in options.levels:
            client.samples, client.begin = [], time.perf_counter()
            await client.stream(f"mix {level}", rate * level, options.seconds, MIX)
            samples = client.samples
            first = len(samples) // 4
            facts["levels"][str(level)] = {
                "requests": len(samples),
                "learning": [quantile(errors(samples[:first]), part) for part in (0.5, 0.9)],
                "later": [quantile(errors(samples[first:]), part) for part in (0.5, 0.9)],
                "ttft": [quantile([s.ttft for s in samples if s.ttft is not None], part) for part in (0.5, 0.9)],
            }
            show(level, facts["levels"][str(level)])
    return facts


def show(level: float, facts: dict[str, Any]) -> None:
    learning, later, ttft = ([f"{value:.0%}" for value in facts[n]] for n in ("learning", "later", "ttft"))
    ttft = [f"{value:.2f} s" for value in facts["ttft"]]
    print(
        f"load {level:.1f}: {facts['requests']:4} requests, TTFT p50 {ttft[0]} p90 {ttft[1]}; error p50 {later[0]} "
        f"p90 {later[1]} (first quarter {learning[0]}, {learning[1]})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", type=float, nargs="*", default=[0.3, 0.6, 0.9])
    parser.add_argument("--seconds", type=float, default=60.0, help="of each level")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report(options.json, asyncio.run(measure(options)))


if __name__ == "__main__":
    main()
