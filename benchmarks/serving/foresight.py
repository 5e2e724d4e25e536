"""Is the predicted time to the first token right?  `python -m benchmarks.serving.foresight`

A mix of short, middle and long prompts arrives at parts of the server's capacity, below and above it. Each answer's
header says what was predicted when it was admitted; the error is |actual - predicted| / actual. The first requests of
a level, from which the server still learns, are shown apart. What is left is taken apart: HTTP and this client (the
server's clock beside ours), the length of the prompt, and how far the steps themselves were from the formula.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.serving.live import Client, Sample, capacity, quantile, report, served
from benchmarks.serving.scenarios import MIX


def errors(samples: Sequence[Sample], *, server: bool = False) -> list[float]:
    """(predicted - actual) / actual; `server`: against the server's own time, without HTTP and this client's delays."""
    found = []
    for sample in samples:
        actual = (sample.timings.get("ttft_ms") or 0.0) / 1000 if server else sample.ttft
        if sample.predicted is not None and actual:
            found.append((sample.predicted - actual) / actual)
    return found


def parts(values: Sequence[float], *points: float) -> list[float]:
    return [quantile(values, point) for point in points]


def absolute(samples: Sequence[Sample], *, server: bool = False) -> list[float]:
    return parts([abs(error) for error in errors(samples, server=server)], 0.5, 0.9)


def facts_of(samples: Sequence[Sample]) -> dict[str, Any]:
    """Of one level: absolute errors, and signed ones by the prompt's length."""
    first = len(samples) // 4
    learning, later = samples[:first], samples[first:]
    lag = [s.ttft * 1000 - s.timings["ttft_ms"] for s in later if s.ttft is not None and s.timings.get("ttft_ms")]
    sizes = sorted({sample.prompt for sample in later})
    return {
        "requests": len(samples),
        "learning": absolute(learning),
        "later": absolute(later),
        "server": absolute(later, server=True),
        "lag_ms": parts(lag, 0.5, 0.9),
        "ttft": parts([s.ttft for s in later if s.ttft is not None], 0.5, 0.9),
        "by_prompt": {size: parts(errors([s for s in later if s.prompt == size]), 0.1, 0.5, 0.9) for size in sizes},
        "samples": [[s.sent, s.prompt, s.predicted, s.ttft, s.timings.get("ttft_ms")] for s in samples],
    }


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    facts: dict[str, Any] = {"mix": MIX, "levels": {}}
    later: list[Sample] = []
    async with served("--no-prefix-cache") as client:
        await capacity(client, (120, 32), 4)
        rate = sum([await capacity(client, size, 6) ** -1 for size in MIX]) ** -1 * len(MIX)
        print(f"capacity: about {rate:.2f} of the mix a second", flush=True)
        for level in options.levels:
            client.samples, client.begin = [], time.perf_counter()
            await client.stream(f"mix {level}", rate * level, options.seconds, MIX)
            facts["levels"][str(level)] = facts_of(client.samples)
            show(level, facts["levels"][str(level)])
            later += client.samples[len(client.samples) // 4 :]
            print(f"  steps were off by {await step_error(client):.0%} (mean)", flush=True)
    facts["all"] = {"later": absolute(later), "server": absolute(later, server=True)}
    print("all loads, without their first quarters: error p50 {:.0%} p90 {:.0%}".format(*facts["all"]["later"]))
    return facts


async def step_error(client: Client) -> float:
    """Mean over all steps since the start."""
    async with client.session.get(f"{client.url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    total, count = (
        next((float(line.split()[-1]) for line in lines if line.startswith(f"tailrace_step_error_ratio_{what}")), 0.0)
        for what in ("sum", "count")
    )
    return total / count if count else float("nan")


def show(level: float, facts: dict[str, Any]) -> None:
    learning, later, server = ([f"{value:.0%}" for value in facts[n]] for n in ("learning", "later", "server"))
    ttft, lag = [f"{value:.2f} s" for value in facts["ttft"]], [f"{value:.0f} ms" for value in facts["lag_ms"]]
    print(
        f"load {level:.1f}: {facts['requests']:4} requests, TTFT p50 {ttft[0]} p90 {ttft[1]}; error p50 {later[0]} "
        f"p90 {later[1]} (first quarter {learning[0]}, {learning[1]}; by the server's clock {server[0]}, {server[1]})\n"
        f"  seen later than made by p50 {lag[0]} p90 {lag[1]}; predicted over actual, p10 p50 p90:",
        *(f"{size}: " + " ".join(f"{e:+.0%}" for e in found) for size, found in facts["by_prompt"].items()),
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
