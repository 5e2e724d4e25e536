"""A batch through kill -9 again and again, with live chats beside it: is each line there once, and what do chats feel?

    python -m benchmarks.serving.durable_batch [--lines 500] [--kills 20] [--seconds 60] [--database URL | postgres]

Three parts with the default model. Live chats alone for --seconds; the same chats, at the same times, while a batch
runs; then the batch goes on with chats beside it while the server is killed --kills times at random moments and started
again. In the end every line must be in one of the batch's files, once, with one row in the ledger, and tokens must add
up. `postgres` starts a PostgreSQL of its own (Debian's package); the default is SQLite in a new folder.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
from benchmarks.serving.live import Client, quantile, report, served, ttfts
from sqlalchemy import select
from tests.postgres_server import postgres_server

from tailrace.database.database import Database
from tailrace.database.ledger import ledger

CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")
LIVE = ((48, 24), (96, 32))  # prompt tokens, tokens of the answer


def batch_of(count: int, tokens: int) -> bytes:
    """Each with a prompt of its own."""
    lines = []
    for number in range(count):
        words = f"Write a sentence about the number {number}, and say why it is not {number + 1}."
        body = {"messages": [{"role": "user", "content": words}], "max_tokens": tokens, "temperature": 0}
        lines.append(json.dumps({"custom_id": f"line-{number}", "method": "POST", "url": CHAT, "body": body}))
    return "\n".join(lines).encode()


async def start(client: Client, data: bytes) -> str:
    form = aiohttp.FormData()
    form.add_field("purpose", "batch")
    form.add_field("file", data, filename="lines.jsonl")
    async with client.session.post(f"{client.url}/v1/files", data=form) as answer:
        file = await answer.json()
    body = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
    async with client.session.post(f"{client.url}/v1/batches", json=body) as answer:
        made: str = (await answer.json())["id"]
    return made


async def batch(client: Client, batch_id: str) -> dict[str, Any]:
    """A server that has just begun may not know its database yet, nor who has keys there."""
    while True:
        async with client.session.get(f"{client.url}/v1/batches/{batch_id}") as answer:
            found: dict[str, Any] = await answer.json()
            assert answer.status in (200, 401, 503), found
            if answer.status == 200:
                return found
        await asyncio.sleep(0.1)


async def lines_of(client: Client, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    async with client.session.get(f"{client.url}/v1/files/{file_id}/content") as answer:
        return [json.loads(line) for line in (await answer.text()).splitlines()]


async def live(client: Client, rate: float, seconds: float) -> list[float]:
    """Times to the first token of chats, which come at the same times each time."""
    client.begin, client.rng, client.samples = time.perf_counter(), random.Random(1), []
    await client.stream("live", rate, seconds, LIVE)
    return ttfts(client.samples, "live")


async def killed(flags: list[str], batch_id: str, rng: random.Random, rate: float) -> tuple[int, int]:
    """One life of a server, ended by SIGKILL; lines that had ended before and after it, as it saw them."""
    async with served(*flags) as client:
        before = (await batch(client, batch_id))["request_counts"]
        chats = asyncio.create_task(client.stream("killed", rate, 600, LIVE))
        await asyncio.sleep(rng.uniform(0.2, 6.0))
        with suppress(aiohttp.ClientError):
            after = (await batch(client, batch_id))["request_counts"]
        os.kill(client.pid, signal.SIGKILL)
        chats.cancel()
        await asyncio.gather(chats, return_exceptions=True)
    return before["completed"] + before["failed"], after["completed"] + after["failed"]


async def accounted(database: str, job: dict[str, Any], made: list[dict[str, Any]], count: int) -> dict[str, Any]:
    """What must hold, in numbers: 0 is right."""
    kept = Database(database)
    async with kept.read() as connection:
        rows = (await connection.execute(select(ledger).where(ledger.c.job_id == job["id"]))).mappings().all()
    await kept.close()
    seen = Counter(each["custom_id"] for each in made)
    ended = [row for row in rows if row["outcome"] in ("ok", "invalid")]  # others are attempts that came to nothing
    billed = Counter(row["request_id"] for row in ended)
    tokens = sum(each["response"]["body"]["usage"]["completion_tokens"] for each in made if _answered(each))
    return {
        "lines missing": count - len(seen),
        "lines twice": sum(number - 1 for number in seen.values()),
        "rows missing": count - len(billed),
        "rows twice": sum(number - 1 for number in billed.values()),
        "tokens off, usage": job["usage"]["output_tokens"] - tokens,
        "tokens off, ledger": sum(row["completion_tokens"] for row in ended) - tokens,
    }


def _answered(line: dict[str, Any]) -> bool:
    return line["response"] is not None and line["response"]["status_code"] == 200


async def measure(options: argparse.Namespace, database: str, folder: Path) -> dict[str, Any]:
    flags, rng = ["--database", database, "--data-folder", str(folder)], random.Random(options.seed)
    facts: dict[str, Any] = {"lines": options.lines, "kills": options.kills}
    async with served(*flags) as client:
        await live(client, options.rate, 10)
        alone = await live(client, options.rate, options.seconds)
        batch_id = await start(client, batch_of(options.lines, options.tokens))
        beside = await live(client, options.rate, options.seconds)
        counts = (await batch(client, batch_id))["request_counts"]
        facts["lines beside chats"] = counts["completed"] + counts["failed"]
        os.kill(client.pid, signal.SIGKILL)
    for name, values in (("alone", alone), ("beside a batch", beside)):
        facts[f"ttft {name}"] = {"chats": len(values), "p50": quantile(values, 0.5), "p95": quantile(values, 0.95)}
    facts["p95 ratio"] = quantile(beside, 0.95) / quantile(alone, 0.95)
    lives = [await killed(flags, batch_id, rng, options.rate) for _ in range(options.kills - 1)]
    facts["lines seen after each kill"] = [after for _, after in lives]
    facts["lost by a kill"] = sum(later[0] < earlier[1] for earlier, later in pairwise(lives))
    async with served(*flags) as client:
        while (job := await batch(client, batch_id))["status"] not in ENDED:  # noqa: ASYNC110 - it is polled
            await asyncio.sleep(0.5)
        made = [*await lines_of(client, job["output_file_id"]), *await lines_of(client, job["error_file_id"])]
    facts["status"], facts["counts"] = job["status"], job["request_counts"]
    facts["wrong"] = await accounted(database, job, made, options.lines)
    return facts


@contextmanager
def database_of(asked: str, folder: Path) -> Iterator[str]:
    with ExitStack() as stack:
        if asked == "postgres":
            yield stack.enter_context(postgres_server()).url("tailrace")
        else:
            yield asked or f"sqlite:///{folder / 'tailrace.db'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=24, help="most tokens of a line's answer")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60, help="of live chats, without the batch and with it")
    parser.add_argument("--rate", type=float, default=0.7, help="live chats a second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--database", default="", help="a URL, or `postgres`")
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, database_of(options.database, Path(name)) as database:
        facts = asyncio.run(measure(options, database, Path(name)))
    print(json.dumps(facts, indent=2))
    report(options.report, facts)


if __name__ == "__main__":
    main()
