"""Mixed traffic with disconnects for a long time; memory must stay flat and nothing may stay behind.

    python -m benchmarks.serving.soak [--minutes 30] [--leaving 0.2] [--plot FILE.html] [--json FILE]

A real server with two tenants that have limits, its ledger, a log line per request as JSON, and every route that makes
text, in all forms. A given part of the requests hangs up at a random moment. Each second its resident memory and file
handles are read, and what runs, waits and is in use from /metrics. Before and after, while nothing is to do, its tasks,
connections, timelines, runs, holds on limits, sequences, streams, KV blocks and file handles are counted. Ends with
status 1 when memory grew by more than 3 % after the warm-up (the first third), when anything stayed behind, or when any
answer was a failure of the server's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import aiohttp
from benchmarks.serving.soak.server import Served, served
from benchmarks.serving.soak.traffic import Traffic
from benchmarks.serving.soak.verdict import Look, Soak, notes, plot
from prometheus_client.parser import text_string_to_metric_families

from tailrace.control.keys import NewKey, new_key

BEGIN = 10.0  # seconds of traffic before the first counts: pools and connections to the database are there then
KV = "128MiB"  # all of it holds cached prefixes soon; of more, pages would be touched for the first time all the while
SETTLE = 60  # looks, a second apart, until what is behind has ended
TENANT = """
[[tenants]]
name = "{name}"
limits = {{ requests_per_minute = 100000, output_tokens_per_minute = 10000000, concurrency = 12 }}
[[tenants.keys]]
name = "k"
hash = "{hash}"
"""


async def gauges(session: aiohttp.ClientSession, server: Served) -> dict[str, float]:
    """`running`, `waiting`, and `kv_used` in tokens."""
    async with session.get(f"{server.url}/metrics") as answer:
        families = list(text_string_to_metric_families(await answer.text()))
    samples = [sample for family in families for sample in family.samples]

    def total(name: str, **labels: str) -> float:
        return sum(
            each.value for each in samples if each.name == f"tailrace_{name}" and labels.items() <= each.labels.items()
        )

    return {
        "running": total("requests_running"),
        "waiting": total("requests_waiting"),
        "kv_used": total("kv_tokens", state="used"),
    }


async def watch(server: Served, soak: Soak) -> None:
    """Until cancelled."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    async with aiohttp.ClientSession() as session:
        while True:
            seen = await gauges(session, server)
            soak.looks.append(Look(loop.time() - begin, server.resident(), server.handles(), **seen))
            await asyncio.sleep(1.0)


async def idle(server: Served) -> dict[str, float]:
    """Counts once nothing is to do: the last of a few looks that agree, or of many that do not."""
    before: dict[str, float] = {}
    for _ in range(SETTLE):
        async with aiohttp.ClientSession() as session:
            seen = await gauges(session, server)
        await asyncio.sleep(1.0)
        counted: dict[str, float] = {**await server.counts(), **seen}
        if counted == before:
            break
        before = counted
    return before


async def run(options: argparse.Namespace, folder: Path) -> Soak:
    keys: list[NewKey] = [new_key(), new_key()]
    tables = [TENANT.format(name=f"tenant-{number}", hash=key.hash) for number, key in enumerate(keys)]
    (folder / "settings.toml").write_text("".join(tables), encoding="utf-8")
    log = ("--log-format", "json", "--log-level", "info")
    flags = ("--config", str(folder / "settings.toml"), *log, "--kv-memory", KV)
    soak = Soak(options.minutes * 60)
    async with served(options.model, folder, *flags) as server:
        traffic = Traffic(server.url, [key.key for key in keys], options.leaving, options.seed)
        await traffic.run(options.clients, BEGIN)
        soak.before = await idle(server)
        traffic.ends.clear()
        watcher = asyncio.create_task(watch(server, soak))
        await traffic.run(options.clients, soak.seconds)
        watcher.cancel()
        soak.after = await idle(server)
        ends: Counter[str] = Counter()
        for (_, end), count in traffic.ends.items():
            ends[end] += count
        soak.ends = dict(ends)
    return soak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--leaving", type=float, default=0.2, help="part of the requests that hang up")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, help=".html or .png")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        soak = asyncio.run(run(options, Path(folder)))
    print("\n".join(notes(soak)))
    print("ends:", soak.ends)
    if options.plot is not None:
        plot(soak, options.plot)
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(soak)) + "\n", encoding="utf-8")
    faults = soak.faults()
    print("FAULTS: " + "; ".join(faults) if faults else "nothing grew, nothing was left")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
