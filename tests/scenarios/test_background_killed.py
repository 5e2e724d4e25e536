"""Background responses across servers that are killed: each is made, once, and accounted for once."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from pathlib import Path

import openai
from openai.types.responses import Response
from sqlalchemy import select

from tailrace.database.database import Database
from tailrace.database.ledger import ledger
from tests.scenarios.child import child

SERVER = "tests.scenarios.jobs_server"
OPEN = ("queued", "in_progress")


async def look(client: openai.AsyncOpenAI, ids: list[str]) -> list[Response]:
    return [await client.responses.retrieve(each) for each in ids]


async def reached(client: openai.AsyncOpenAI, ids: list[str], least: int) -> list[Response]:
    async with asyncio.timeout(120):
        while True:
            found = await look(client, ids)
            if sum(each.status not in OPEN for each in found) >= least:
                return found


async def test_killed_while_some_are_made(url: str, tmp_path: Path) -> None:
    rng, folder, count = random.Random(3), str(tmp_path / "data"), 12
    ids: list[str] = []
    async with child(SERVER, url, folder) as (process, address):
        async with openai.AsyncOpenAI(base_url=address + "/v1", api_key="x", timeout=120) as client:
            for number in range(count):
                asked = {"input": f"say {number}", "temperature": 0, "max_output_tokens": 40}
                made = await client.responses.create(model="fake", background=True, **asked)  # type: ignore[call-overload]
                ids.append(made.id)
            await reached(client, ids, 4)
        await asyncio.sleep(rng.random() * 0.02)  # anywhere in what the server does then
        process.kill()
    async with child(SERVER, url, folder, ended_by=signal.SIGTERM) as (process, address):
        async with openai.AsyncOpenAI(base_url=address + "/v1", api_key="x", timeout=120) as client:
            made = await reached(client, ids, count)
            for number, each in enumerate(made):
                asked = {"input": f"say {number}", "temperature": 0, "max_output_tokens": 40}
                plain = await client.responses.create(model="fake", **asked)  # type: ignore[call-overload]
                assert (each.status, each.output_text) == (plain.status, plain.output_text)
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), 120)
    kept = Database(url)
    async with kept.read() as connection:
        rows = (await connection.execute(select(ledger).where(ledger.c.job_id != ""))).mappings().all()
    await kept.close()
    ended = Counter(row["job_id"] for row in rows if row["outcome"] == "ok")
    assert ended == Counter(ids)
