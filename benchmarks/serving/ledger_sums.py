"""Whether ledger, metrics and clients agree on the real model: `python -m benchmarks.serving.ledger_sums --minutes 10`.

A server of its own with little KV memory, so that sequences are preempted, and clients of all kinds: streams, whole
answers, several choices and prompts, wrong bodies, a tenant beyond its limits, and one stream in five whose client
hangs up. Then sums: rows of the ledger against the metrics, and each row against the usage, the timings and the clock
of the client that saw the end of its answer. Ends with status 1 where anything differs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
from benchmarks.serving.live import Client, served

from tailrace.control.keys import digest
from tailrace.database.database import Database
from tailrace.database.export import Wanted, pages
from tailrace.figures.numbers import distribution

KINDS = {"stream": 9, "whole": 3, "choices": 2, "prompts": 2, "wrong": 2, "limited": 2}
LEAVES = 0.2  # of the streams
TOKENS = {
    "prompt_tokens": "prompt_tokens",
    "cached_tokens": "cached_tokens",
    "completion_tokens": "generated_tokens",
}  # columns, and what the metrics call them
TOLD = ("prompt_tokens", "completion_tokens", "cached_tokens", "drafted_tokens", "accepted_tokens")
COUNTS = {"preemptions": "preemptions", "recomputed_tokens": "recomputed_tokens"}
TEXT = "the river ran over green stones slowly, and the lamp was lit before night came down on all of us"


@dataclass(slots=True)
class Heard:
    """What a client knows of its request. Times in seconds on its own clock; `told`: it saw the end of the answer."""

    status: int = 0
    ttft: float | None = None
    end: float = 0.0
    told: bool = False
    usage: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)


class Crowd:
    def __init__(self, client: Client, seed: int) -> None:
        self.heard: dict[str, Heard] = {}
        self._client = client
        self._rng = random.Random(seed)

    async def drive(self, seconds: float, clients: int) -> None:
        """Closed loop: each sends its next request when the last has ended."""
        until = time.perf_counter() + seconds
        await asyncio.gather(*(self._one(until) for _ in range(clients)))

    async def _one(self, until: float) -> None:
        while time.perf_counter() < until:
            kind = self._rng.choices(list(KINDS), list(KINDS.values()))[0]
            await self._ask(kind)

    async def _ask(self, kind: str) -> None:
        rng, name = self._rng, f"sums-{len(self.heard)}"
        heard = self.heard[name] = Heard()
        path, body = self._body(kind)
        leaves = rng.randrange(1, 30) if kind == "stream" and rng.random() < LEAVES else 0
        headers = {"x-request-id": name, "authorization": f"Bearer {'small' if kind == 'limited' else 'large'}"}
        sent = time.perf_counter()
        async with self._client.session.post(self._client.url + path, json=body, headers=headers) as answer:
            heard.status = answer.status
            if body.get("stream") and answer.status == 200:
                await self._read(answer, heard, sent, leaves)
            else:
                found = await answer.json()
                heard.end = time.perf_counter() - sent
                heard.told = answer.status == 200
                heard.usage, heard.timings = found.get("usage", {}), found.get("timings", {})

    async def _read(self, answer: aiohttp.ClientResponse, heard: Heard, sent: float, leaves: int) -> None:
        seen = 0
        async for line in answer.content:
            if line.startswith(b"data: [DONE]"):
                heard.told = True
            if not line.startswith(b"data: {"):
                continue
            heard.ttft = heard.ttft or time.perf_counter() - sent
            event = json.loads(line[6:])
            heard.usage, heard.timings = event.get("usage") or heard.usage, event.get("timings") or heard.timings
            seen += 1
            if seen == leaves:
                answer.close()
                return
        heard.end = time.perf_counter() - sent

    def _body(self, kind: str) -> tuple[str, dict[str, Any]]:
        rng = self._rng
        text = " ".join(rng.choices(TEXT.split(), k=rng.randrange(4, 120)))
        if kind == "prompts":
            return "/v1/completions", {"prompt": [text, text[:40]], "max_tokens": rng.randrange(1, 40)}
        body = {
            "messages": [{"role": "user", "content": text}],
            "max_tokens": rng.randrange(1, 160),
            "ignore_eos": True,
        }
        if kind == "stream":
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if kind == "choices":
            body |= {"n": 2}
        if kind == "wrong":
            body |= rng.choice([{"temperature": 9}, {"model": "none"}, {"messages": []}, {"max_tokens": -1}])
        return "/v1/chat/completions", body


async def measure(options: argparse.Namespace) -> bool:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "settings.toml").write_text(_settings(), encoding="utf-8")
        flags = [options.model, "--config", str(root / "settings.toml"), "--data-folder", folder]
        flags += ["--kv-memory", options.kv_memory, "--max-sequences", "12"]
        async with served(*flags) as client:
            crowd = Crowd(client, options.seed)
            await crowd.drive(options.minutes * 60, options.clients)
            text = await _settled(client)
        rows = [row async for page in _pages(f"sqlite:///{root / 'tailrace.db'}") for row in page]
    return _report([dict(row._mapping) for row in rows], crowd.heard, text)


def _settings() -> str:
    key = 'name = "k"\nhash = "sha256:s:{2}"\nscopes = ["inference", "admin"]\n'
    tenant = f'[[tenants]]\nname = "{{0}}"\n{{1}}[[tenants.keys]]\n{key}'
    limits = "limits = {requests_per_minute = 1}\n"
    return tenant.format("large", "", digest("large", "s")) + tenant.format("small", limits, digest("small", "s"))


async def _pages(url: str) -> Any:
    database = Database(url)
    try:
        async for page in pages(database, Wanted()):
            yield page
    finally:
        await database.close()


async def _settled(client: Client) -> str:
    """The metrics, once nothing runs or waits and every row is written."""
    while True:
        async with client.session.get(client.url + "/metrics", headers={"authorization": "Bearer large"}) as answer:
            text = await answer.text()
        busy = sum(_value(text, f"tailrace_requests_{state}") for state in ("running", "waiting"))
        ended = _total(text, "tailrace_requests_total")
        if not busy and ended == _value(text, 'tailrace_ledger_rows_total{result="written"}'):
            return text
        await asyncio.sleep(0.1)


def _value(text: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def _total(text: str, family: str) -> float:
    return sum(map(float, re.findall(rf"^{family}\{{[^}}]*\}} (\S+)$", text, re.MULTILINE)))


def _report(rows: list[dict[str, Any]], heard: dict[str, Heard], text: str) -> bool:
    wrong = [*_against_metrics(rows, text), *_against_clients({row["request_id"]: row for row in rows}, heard)]
    ends = Counter(row["outcome"] for row in rows)
    print(f"{len(rows)} rows:", ", ".join(f"{count} {name}" for name, count in ends.most_common()))
    print("sums:", {name: sum(row[name] for row in rows) for name in (*TOKENS, *COUNTS)})
    for line in wrong:
        print("differs:", line)
    print("differences:", len(wrong))
    return not wrong


def _against_metrics(rows: list[dict[str, Any]], text: str) -> list[str]:
    found = []
    for (route, outcome), count in Counter((row["route"], row["outcome"]) for row in rows).items():
        theirs = _value(text, f'tailrace_requests_total{{outcome="{outcome}",route="{route}"}}')
        found.append((f"requests of {route} that are {outcome}", count, theirs))
    for name, metric in {**TOKENS, **COUNTS}.items():
        found.append((name, sum(row[name] for row in rows), _value(text, f"tailrace_{metric}_total")))
    for tenant in sorted({row["tenant"] for row in rows}):
        mine = sum(row["device_us"] for row in rows if row["tenant"] == tenant)
        theirs = round(_value(text, f'tailrace_device_seconds_total{{tenant="{tenant}"}}') * 1e6)
        found.append((f"device_us of {tenant}", mine, theirs))
    return [f"{name}: ledger {mine}, metrics {theirs}" for name, mine, theirs in found if mine != theirs]


def _against_clients(rows: dict[str, dict[str, Any]], heard: dict[str, Heard]) -> list[str]:
    wrong, ttft, whole = [f"{name}: no row" for name in heard if name not in rows], [], []
    for name, one in heard.items():
        row = rows.get(name)
        if row is None or not one.told:
            continue
        whole.append(one.end - row["total_us"] / 1e6)
        if one.ttft is not None:
            ttft.append(one.ttft - row["ttft_us"] / 1e6)
        said = {
            **one.usage,
            **{key: one.timings[key] for key in ("cached_tokens", "drafted_tokens", "accepted_tokens")},
        }
        wrong += [
            f"{name}: {key} is {row[key]}, told {said[key]}"
            for key in ("prompt_tokens", "completion_tokens", "cached_tokens", "drafted_tokens", "accepted_tokens")
            if row[key] != said[key]
        ]
        if row["outcome"] != "ok" or row["queue_us"] / 1000 != one.timings["queue_ms"]:
            wrong.append(f"{name}: {row['outcome']}, queue {row['queue_us']} us, told {one.timings['queue_ms']} ms")
    seen = sum(one.told for one in heard.values())
    print(f"{len(heard)} requests sent, {seen} answers seen to their end")
    for label, values in (("TTFT", ttft), ("E2E", whole)):
        print(f"client's clock less the record's, {label}, ms:", distribution(values))
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--kv-memory", default="8MiB")
    parser.add_argument("--seed", type=int, default=0)
    sys.exit(0 if asyncio.run(measure(parser.parse_args())) else 1)


if __name__ == "__main__":
    main()
