"""Do short chats keep their first-token times beside long prompts?  `python -m benchmarks.serving.isolation`

Short chats arrive at 30 % of what the server can do, first alone, then beside long prompts at another 30 %, in turns.
Prints the quantiles of both and their ratios: for short ones P99 beside / alone, for long ones their end-to-end time
over that of one that has the machine to itself. Rates come from a measurement at the start, so the load is the same
part of a fast and a slow machine.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.serving.live import Client, Sample, capacity, quantile, report, served, ttfts


async def phase(client: Client, rates: dict[str, float], options: argparse.Namespace) -> list[Sample]:
    """One stretch of load; its samples."""
    client.samples = []
    client.begin = time.perf_counter()
    streams = [client.stream("short", rates["short"], options.seconds, [(options.short, options.answer)])]
    if rates.get("long"):
        streams.append(client.stream("long", rates["long"], options.seconds, [(options.long, options.answer)]))
    await asyncio.gather(*streams)
    return client.samples


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    async with served("--no-prefix-cache") as client:
        await capacity(client, (options.short, options.answer), 4)
        short = await capacity(client, (options.short, options.answer))
        single = statistics.median(
            [(await client.ask("warm", options.long, options.answer)).end or 0.0 for _ in range(3)]
        )
        long = await capacity(client, (options.long, options.answer), 6)
        rates = {"short": 0.3 * short, "long": 0.3 * long}
        print(f"capacity: {short:.2f} short a second, {long:.3f} long; one long alone {single:.2f} s", flush=True)
        alone: list[Sample] = []
        beside: list[Sample] = []
        for _ in range(options.rounds):
            alone += await phase(client, {"short": rates["short"]}, options)
            beside += await phase(client, rates, options)
    ends = [sample.end for sample in beside if sample.kind == "long" and sample.end is not None]
    facts: dict[str, Any] = {"rates": rates, "long_alone": single, "requests": [len(alone), len(beside)]}
    for part in (0.5, 0.9, 0.99):
        name = f"p{part * 100:g}"
        before, after = quantile(ttfts(alone, "short"), part), quantile(ttfts(beside, "short"), part)
        facts[name] = {"short_alone": before, "short_beside": after, "ratio": after / before}
        facts[name] |= {"long_e2e": quantile(ends, part), "long_ratio": quantile(ends, part) / single}
    return facts


def show(facts: dict[str, Any]) -> None:
    print("        short TTFT alone   beside long    ratio    long end-to-end / alone")
    for name in ("p50", "p90", "p99"):
        one = facts[name]
        print(
            f"{name:5} {one['short_alone'] * 1e3:14.0f} ms {one['short_beside'] * 1e3:10.0f} ms {one['ratio']:8.2f}"
            f" {one['long_e2e']:13.2f} s {one['long_ratio']:6.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", type=int, default=60, help="prompt tokens of a short chat")
    parser.add_argument("--long", type=int, default=1800, help="prompt tokens of a long one")
    parser.add_argument("--answer", type=int, default=24, help="tokens of every answer")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each phase")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    facts = asyncio.run(measure(options))
    show(facts)
    report(options.json, facts)


if __name__ == "__main__":
    main()
