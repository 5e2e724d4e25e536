"""A server that is killed: what its ledger had counted as kept is there afterwards, once."""

from __future__ import annotations

import asyncio
import re
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import httpx

from tests.postgres_server import Postgres, needs_postgres
from tests.scenarios.child import child
from tests.serving import chat

SERVER = "tests.scenarios.ledger_server"


async def counted(client: httpx.AsyncClient, base: str, result: str) -> int:
    text = (await client.get(base + "/metrics")).text
    found = re.search(rf'tailrace_ledger_rows_total{{result="{result}"}} (\d+)', text)
    assert found is not None
    return int(found[1])


async def ask(client: httpx.AsyncClient, base: str, first: int, last: int) -> None:
    for number in range(first, last):
        headers = {"x-request-id": f"r{number}"}
        answer = await client.post(base + "/v1/chat/completions", json=chat(max_tokens=2), headers=headers)
        assert answer.status_code == 200


async def kept(client: httpx.AsyncClient, base: str) -> list[str]:
    found: list[str] = []
    after = ""
    while True:
        page = (await client.get(f"{base}/v1/requests?limit=100{after}")).json()
        found += [each["id"] for each in page["data"]]
        if not page["has_more"]:
            return sorted(found, key=lambda name: int(name[1:]))
        after = f"&after={page['last_id']}"


async def reached(client: httpx.AsyncClient, base: str, result: str, rows: int) -> None:
    """Each look is a round trip, so nothing spins."""
    async with asyncio.timeout(120):
        while await counted(client, base, result) < rows:
            pass


async def test_rows_that_were_written_survive(url: str, tmp_path: Path) -> None:
    async with httpx.AsyncClient(timeout=120) as client:
        async with child(SERVER, url, str(tmp_path)) as (process, base):
            await ask(client, base, 0, 30)
            await reached(client, base, "written", 30)
            await ask(client, base, 30, 33)  # may be lost: they ended a moment ago
            process.send_signal(signal.SIGKILL)
        async with child(SERVER, url, str(tmp_path)) as (_, base):
            found = await kept(client, base)
    assert found[:30] == [f"r{number}" for number in range(30)]
    assert found == sorted(set(found), key=found.index) and len(found) <= 33


async def through_the_file(client: httpx.AsyncClient, base: str) -> None:
    """While the database is away."""
    before = await counted(client, base, "written")
    await ask(client, base, before, 25)
    await reached(client, base, "spilled", 25 - before)


async def test_rows_in_the_file_survive_a_locked_database(tmp_path: Path) -> None:
    file = tmp_path / "kept.db"
    async with httpx.AsyncClient(timeout=120) as client:
        async with child(SERVER, f"sqlite:///{file}", str(tmp_path)) as (process, base):
            await ask(client, base, 0, 5)
            await reached(client, base, "written", 5)
            with closing(sqlite3.connect(file, isolation_level=None)) as holder:
                holder.execute("BEGIN IMMEDIATE")
                await through_the_file(client, base)
                process.send_signal(signal.SIGKILL)
                await process.wait()
        async with child(SERVER, f"sqlite:///{file}", str(tmp_path)) as (_, base):
            await reached(client, base, "written", 20)
            assert await kept(client, base) == [f"r{number}" for number in range(25)]
    assert (tmp_path / "ledger.0.jsonl").stat().st_size == 0


@needs_postgres
async def test_rows_come_once_after_a_database_was_away(postgres: Postgres, tmp_path: Path) -> None:
    url = postgres.url("gone")
    async with httpx.AsyncClient(timeout=120) as client, child(SERVER, url, str(tmp_path)) as (_, base):
        await ask(client, base, 0, 5)
        await reached(client, base, "written", 5)
        postgres.stop()
        try:
            await through_the_file(client, base)
        finally:
            postgres.start()
        await reached(client, base, "written", 25)
        assert await kept(client, base) == [f"r{number}" for number in range(25)]
        assert await counted(client, base, "dropped") == 0
