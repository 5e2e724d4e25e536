"""Do short chats keep their first-token times beside long prompts, here and on other servers in the same run?

    python -m benchmarks.serving.isolation [--llama-server PATH] [--openvino-python PATH] [--seconds 60] [--rounds 2]

Each server gets the same load in turn: short chats at 30 % of what it can do, alone and beside prompts of 1,800 to
6,000 tokens at another 30 %, in turns. Rates follow from what each server does at the start, so that a fast and a slow
one carry the same part of their load. Printed: P50, P90 and P99 of the chats' first token in both, their ratio, and for
long prompts the worst end-to-end time over twice the time alone plus the work ahead. Before and after each server a
fixed piece of work is timed, so that it can be seen what neighbours on the machine did meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from benchmarks.peers.servers import Server, llama_server, openvino, tailrace
from benchmarks.serving.live import Client, Sample, capacity, quantile, report, ttfts

from tailrace.config import load
from tailrace.llm.ready import find_model

LONG = (3600, 1800, 6000, 2700)  # prompt tokens, in turns
TIMED = (1800, 3600)  # those whose time alone is measured; that of others follows
SHORT = (60, 24)  # prompt and answer
ANSWER = 24
SLOTS, CONTEXT = 16, 6400
POINTS = (0.5, 0.9, 0.99)


def alone_time(at: tuple[float, float]) -> Callable[[int], float]:
    """Seconds of a long prompt alone, from those of two lengths: linear and quadratic in length."""
    (n, m), (x, y) = TIMED, at
    square = max((y / m - x / n) / (m - n), 0.0)
    return lambda tokens: tokens * (x / n + square * (tokens - n))


async def longs(client: Client, rate: float, until: float) -> None:
    """At even distances, the first soon, whether or not the last has ended."""
    tasks = []
    for number, size in zip(itertools.count(), itertools.cycle(LONG)):
        due = 2.0 + number / rate
        if due > until:
            break
        await asyncio.sleep(max(due - (time.perf_counter() - client.begin), 0))
        tasks.append(asyncio.create_task(client.ask("long", size, ANSWER)))
    await asyncio.gather(*tasks)


async def phase(client: Client, short: float, long: float, seconds: float) -> list[Sample]:
    client.samples, client.begin = [], time.perf_counter()
    streams = [client.stream("short", short, seconds, [SHORT])]
    if long:
        streams.append(longs(client, long, seconds))
    await asyncio.gather(*streams)
    return client.samples


def late(samples: Sequence[Sample], alone: Callable[[int], float]) -> float:
    """The worst long prompt's end over twice its time alone and the long ones that were there before it."""
    slow = [sample for sample in samples if sample.kind == "long" and sample.end is not None]
    worst = 0.0
    for one in slow:
        ahead = sum(
            alone(other.prompt)
            for other in slow
            if other.sent < one.sent and other.sent + (other.end or 0.0) > one.sent
        )
        worst = max(worst, (one.end or 0.0) / (2 * alone(one.prompt) + ahead))
    return worst


async def measure(server: Server, seconds: float, rounds: int) -> dict[str, Any]:
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True), timeout=aiohttp.ClientTimeout(900)
    ) as session:
        client = Client(server.url, session, random.Random(1))
        await capacity(client, SHORT, 4)
        short = 0.3 * await capacity(client, SHORT, 16)
        ends = [(await client.ask("warm", size, ANSWER)).end or 0.0 for size in TIMED]
        alone = alone_time((ends[0], ends[1]))
        long = 0.3 * len(LONG) / sum(map(alone, LONG))
        quiet: list[Sample] = []
        beside: list[Sample] = []
        worst = 0.0
        for _ in range(rounds):
            quiet += await phase(client, short, 0.0, seconds)
            both = await phase(client, short, long, seconds)
            worst = max(worst, late(both, alone))
            beside += both
    bad = sum(sample.status != 200 or sample.ttft is None for sample in (*quiet, *beside))
    found: dict[str, Any] = {"short_rate": short, "long_rate": long, "long_alone": ends, "failed": bad}
    for part in POINTS:
        before, after = quantile(ttfts(quiet, "short"), part), quantile(ttfts(beside, "short"), part)
        found[f"p{part * 100:g}"] = {"alone": before, "beside": after, "ratio": after / before}
    found["long_late"] = worst
    found["counts"] = [len(quiet), sum(s.kind == "short" for s in beside), sum(s.kind == "long" for s in beside)]
    return found


def noise(repeats: int = 40) -> tuple[float, float]:
    """Median and 95th percentile of milliseconds for a fixed piece of work on one core."""
    x, took = np.ones((512, 512), np.float32), []
    for _ in range(repeats):
        begin = time.perf_counter()
        x @ x
        took.append((time.perf_counter() - begin) * 1e3)
    return quantile(took, 0.5), quantile(took, 0.95)


def show(name: str, found: dict[str, Any]) -> None:
    times = "   ".join(
        f"{point} {one['alone'] * 1e3:.0f} -> {one['beside'] * 1e3:.0f} ms ({one['ratio']:.2f}x)"
        for point in ("p50", "p90", "p99")
        for one in [found[point]]
    )
    print(
        f"{name:24} {times}   long, worst / (2 alone + ahead) {found['long_late']:.2f}   "
        f"[{found['short_rate']:.2f} chats a second; requests {found['counts']}; failed {found['failed']}]",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="a name of the store or a GGUF file; default: the default model")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=60.0, help="of each phase")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--openvino-python", default="", help="interpreter of an environment with openvino-genai")
    parser.add_argument("--llama-server", default="", help="llama.cpp's llama-server binary")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    model = find_model(load(flags={"engine.model": options.model} if options.model else {}).config.engine)
    calls = {"tailrace": tailrace(model, options.threads)}
    if options.llama_server:
        calls["llama-server"] = llama_server(options.llama_server, model, options.threads, SLOTS, CONTEXT)
    if options.openvino_python:
        calls["openvino + thin front"] = openvino(options.openvino_python, model, options.threads)
    facts: dict[str, Any] = {"model": model.name, "noise_ms": [noise()]}
    for name, call in calls.items():
        server = Server(name, call)
        try:
            server.wait()
            if server.problem:
                print(f"{name} not counted: {server.problem}", flush=True)
                continue
            facts[name] = asyncio.run(measure(server, options.seconds, options.rounds))
            show(name, facts[name])
        finally:
            server.close()
        facts["noise_ms"].append(noise())
    before = " ".join(f"{median:.1f} ({high:.1f})" for median, high in facts["noise_ms"])
    print(f"a fixed piece of work took, before and after each server, median (p95) ms: {before}")
    report(options.json, facts)


if __name__ == "__main__":
    main()
