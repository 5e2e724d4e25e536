"""Does a polite tenant keep its first-token times beside a greedy one?  `python -m benchmarks.serving.fairness`

The polite tenant sends short chats at 20 % of capacity, first alone, then beside a greedy one of equal weight that
keeps ten times as many requests, with longer prompts, waiting at all times. Prints the polite one's TTFT quantiles and
ratios, and how the tokens of the stretch were divided.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.serving.live import Client, Sample, capacity, quantile, report, served, ttfts

from tailrace.control.keys import digest

KEYS = {"polite": "sk-polite", "greedy": "sk-greedy"}


def settings(folder: Path) -> Path:
    """A settings file with the two tenants."""
    tables = []
    for name, key in KEYS.items():
        tables.append(
            f'[[tenants]]\nname = "{name}"\n[[tenants.keys]]\nname = "k"\nhash = "sha256:s:{digest(key, "s")}"\n'
        )
    path = folder / "tailrace.toml"
    path.write_text("\n".join(tables), encoding="utf-8")
    return path


async def greed(client: Client, options: argparse.Namespace, until: float) -> None:
    """Always so many requests in the server."""

    async def again() -> None:
        while time.perf_counter() - client.begin < until:
            sample = await client.ask("greedy", options.long, options.answer, key=KEYS["greedy"])
            if sample.status != 200:
                await asyncio.sleep(1.0)

    await asyncio.gather(*(again() for _ in range(options.greedy)))


async def phase(client: Client, rate: float, options: argparse.Namespace, greedy: bool) -> list[Sample]:
    client.samples, client.begin = [], time.perf_counter()
    streams = [client.stream("polite", rate, options.seconds, [(options.short, options.answer)], key=KEYS["polite"])]
    if greedy:
        streams.append(greed(client, options, options.seconds))
    await asyncio.gather(*streams)
    return client.samples


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        async with served("--no-prefix-cache", "--config", str(settings(Path(folder)))) as client:
            size = (options.short, options.answer)
            await capacity(client, size, 4, key=KEYS["polite"])
            rate = 0.2 * await capacity(client, size, key=KEYS["polite"])
            print(f"polite rate: {rate:.2f} a second", flush=True)
            alone = await phase(client, rate, options, greedy=False)
            beside = await phase(client, rate, options, greedy=True)
    facts: dict[str, Any] = {"rate": rate, "refused": sum(sample.status != 200 for sample in beside)}
    for part in (0.5, 0.9, 0.99):
        before, after = quantile(ttfts(alone, "polite"), part), quantile(ttfts(beside, "polite"), part)
        facts[f"p{part * 100:g}"] = {"alone": before, "beside": after, "ratio": after / before}
    facts["prompt_tokens"] = {
        kind: sum(s.prompt for s in beside if s.kind == kind and s.status == 200) for kind in ("polite", "greedy")
    }
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", type=int, default=60)
    parser.add_argument("--long", type=int, default=400)
    parser.add_argument("--answer", type=int, default=24)
    parser.add_argument("--greedy", type=int, default=40, help="requests that the greedy tenant keeps in the server")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each phase")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    facts = asyncio.run(measure(options))
    print("      polite TTFT alone   beside greedy   ratio")
    for name in ("p50", "p90", "p99"):
        one = facts[name]
        print(f"{name:5} {one['alone'] * 1e3:12.0f} ms {one['beside'] * 1e3:12.0f} ms {one['ratio']:8.2f}")
    print(f"prompt tokens served: {facts['prompt_tokens']}; refused: {facts['refused']}")
    report(options.json, facts)


if __name__ == "__main__":
    main()
