"""A live server under three times what it can do: goodput, refusals, what becomes of who obeys them, and its memory.

    python -m benchmarks.serving.overload --trace azure2023_code.csv [--seconds 120]

The arrivals of a public trace, bursts and all, with lengths scaled down and time stretched so that its mean load is a
given part of capacity, which is measured with the trace's own sizes when the server has seen some of them. First
--loads of it, then three times as much; goodput (first tokens within --slo) is compared with the highest of all. A
refused client comes back after the Retry-After it was told, up to --tries times. Bursts may be many times as dense as
their mean: `densest` is that of ten seconds over it. The server's resident memory is read every second; it must not
grow.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.serving.live import Client, Sample, quantile, report, served

from tailrace.traces import TraceRow, read_trace

MiB = 2**20
OVER = 3.0  # of capacity
TOGETHER = 16  # requests that are there at once when capacity is measured


def scaled(trace: Path, options: argparse.Namespace) -> list[TraceRow]:
    """In order of arrival, from the first; lengths times --length-scale, within bounds."""
    rows = sorted(read_trace(trace), key=lambda row: row.arrival or 0.0)
    first = rows[0].arrival or 0.0

    def length(tokens: int, most: int) -> int:
        return min(max(round(tokens * options.length_scale), 4), most)

    return [
        TraceRow((row.arrival or 0.0) - first, length(row.input_tokens, 1000), length(row.output_tokens, 64))
        for row in rows
    ]


async def obey(client: Client, row: TraceRow, tries: int) -> list[Sample]:
    """One client's attempts."""
    samples: list[Sample] = []
    for _ in range(tries):
        samples.append(await client.ask("trace", row.input_tokens, row.output_tokens))
        if samples[-1].status == 200 or samples[-1].retry_after is None:
            break
        await asyncio.sleep(samples[-1].retry_after)
    return samples


async def play(client: Client, rows: Sequence[TraceRow], pace: float, seconds: float, tries: int) -> list[list[Sample]]:
    """The trace, `pace` times as fast, for so long. Its clients' attempts."""
    client.samples, client.begin = [], time.perf_counter()
    tasks = []
    for row in rows:
        due = (row.arrival or 0.0) / pace
        if due > seconds:
            break
        await asyncio.sleep(max(due - (time.perf_counter() - client.begin), 0.0))
        tasks.append(asyncio.create_task(obey(client, row, tries)))
    return await asyncio.gather(*tasks)


async def watch_memory(pid: int, found: list[float]) -> None:
    """Resident MiB, once a second."""
    while True:
        found.append(_resident(pid))
        await asyncio.sleep(1.0)


def _resident(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]) * 4096 / MiB


def goodput(attempts: Sequence[Sequence[Sample]], slo: float, seconds: float) -> float:
    """First tokens in time, a second, of the stretch itself."""
    good = [s for each in attempts for s in each if s.ttft is not None and s.ttft <= slo and s.sent <= seconds]
    return len(good) / seconds


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    rows = scaled(options.trace, options)
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "tailrace.toml"
        settings.write_text(f"[classes.interactive]\nttft = {options.slo}\n", encoding="utf-8")
        async with served("--no-prefix-cache", "--config", str(settings)) as client:
            await capacity(client, rows[:32])
            most = await capacity(client, rows[32:128])
            print(f"capacity: {most:.2f} requests a second", flush=True)
            memory: list[float] = []
            watching = asyncio.create_task(watch_memory(client.pid, memory))
            levels = {
                load: await stretch(client, rows, load * most, options.seconds / 2, options) for load in options.loads
            }
            levels[OVER] = await stretch(client, rows, OVER * most, options.seconds, options)
            watching.cancel()
    third, peak = len(memory) // 3, max(level["goodput"] for level in levels.values())
    facts: dict[str, Any] = {"capacity": most, "levels": levels, "part": levels[OVER]["goodput"] / max(peak, 1e-9)}
    middle, last = statistics.fmean(memory[third : 2 * third]), statistics.fmean(memory[2 * third :])
    facts["rss_mib"] = {"middle_third": middle, "last_third": last, "highest": max(memory)}
    return facts


async def capacity(client: Client, rows: Sequence[TraceRow]) -> float:
    """Requests a second that it finishes when few enough are there to be let in at once."""
    waiting = iter(rows)

    async def one_by_one() -> None:
        for row in waiting:
            await client.ask("warm", row.input_tokens, row.output_tokens)

    begin, before = time.perf_counter(), len(client.samples)
    await asyncio.gather(*(one_by_one() for _ in range(TOGETHER)))
    return sum(sample.status == 200 for sample in client.samples[before:]) / (time.perf_counter() - begin)


async def stretch(
    client: Client, rows: Sequence[TraceRow], rate: float, seconds: float, options: argparse.Namespace
) -> dict[str, Any]:
    """`rate` requests a second in the mean."""
    count = max(int(rate * seconds), 2)
    part = list(rows[:count])
    pace = (part[-1].arrival or 1.0) / seconds
    dues = [(row.arrival or 0.0) / pace for row in part]
    attempts = await play(client, part, pace, seconds, options.tries)
    refused = [each for each in attempts if each[0].status != 200]
    refusals = [sample for each in attempts for sample in each if sample.status != 200]
    waits = [sample.retry_after for sample in refusals]
    return {
        "clients": len(attempts),
        "densest": max(sum(due <= other < due + 10.0 for other in dues) for due in dues) / 10.0 / rate,
        "goodput": goodput(attempts, options.slo, seconds),
        "refused_at_first": len(refused),
        "let_in_at_next_try": sum(len(each) > 1 and each[1].status == 200 for each in refused) / max(len(refused), 1),
        "answered_in_the_end": sum(each[-1].status == 200 for each in attempts) / max(len(attempts), 1),
        "without_retry_after": sum(wait is None for wait in waits),
        "retry_after_p50": quantile([wait for wait in waits if wait], 0.5),
        "ttft_p99": quantile([s.ttft for each in attempts for s in each if s.ttft is not None], 0.99),
        "reasons": dict(Counter(sample.reason for sample in refusals)),
        "longest": max((s.end or 0.0 for each in attempts for s in each), default=0.0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--length-scale", type=float, default=1 / 32)
    parser.add_argument("--loads", type=float, nargs="*", default=[0.8, 1.2], help="parts of capacity before it")
    parser.add_argument("--seconds", type=float, default=120.0, help="of the overload; half of it for each other load")
    parser.add_argument("--slo", type=float, default=5.0, help="seconds to the first token that count as good")
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    facts = asyncio.run(measure(options))
    for load, found in facts["levels"].items():
        figures = "  ".join(f"{key} {value:.3g}" for key, value in found.items() if key != "reasons")
        print(f"{load:<4} {figures}  reasons {found['reasons']}")
    print(f"goodput over its peak {facts['part']:.2f}; memory in MiB: {facts['rss_mib']}")
    report(options.json, facts)


if __name__ == "__main__":
    main()
