"""Jobs across the ends of servers: killed at any moment, stopped, or several on one database. Each line ends once."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
from sqlalchemy import select

from tailrace.api.state import AppState
from tailrace.backends.base import Backend
from tailrace.backends.fake import FakeBackend
from tailrace.backends.faulty import Fault, FaultyBackend, Kind
from tailrace.database.database import Database
from tailrace.database.jobs import lines
from tailrace.database.ledger import ledger
from tailrace.policy import Policy, Price, Prices, Quota, TenantPolicy
from tailrace.types import GenerateRequest
from tests.api.test_batches import ended, line, lines_of, made
from tests.postgres_server import Postgres, needs_postgres
from tests.scenarios.child import child
from tests.serving import chat, live, make_state, until


def batch_of(count: int) -> bytes:
    """Each tenth line fails by its own fault."""
    bodies = [chat(f"line {i}", max_tokens=0 if i % 10 == 3 else 8) for i in range(count)]
    return b"\n".join([line(f"q{i}", body) for i, body in enumerate(bodies)])


async def check(client: openai.AsyncOpenAI, batch: Any, count: int, database: str) -> None:
    """Each line is in one file, once; counts and tokens add up; the ledger has one row of each, besides those of
    attempts that came to nothing."""
    outputs, errors = await lines_of(client, batch.output_file_id), await lines_of(client, batch.error_file_id)
    failing = {f"q{i}" for i in range(count) if i % 10 == 3}
    assert batch.status == "completed"
    assert set(errors) == failing and set(outputs) == {f"q{i}" for i in range(count)} - failing
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (count, len(outputs), len(errors))
    kept = Database(database)
    async with kept.read() as connection:
        rows = (await connection.execute(select(ledger).where(ledger.c.job_id == batch.id))).mappings().all()
    await kept.close()
    ended = [row for row in rows if row["outcome"] in ("ok", "invalid")]
    assert Counter(row["request_id"] for row in ended) == Counter(f"{batch.id}-{i}" for i in range(count))
    usage = [each["response"]["body"]["usage"] for each in outputs.values()]
    tokens = sum(each["completion_tokens"] for each in usage)
    assert tokens == batch.usage.output_tokens == sum(row["completion_tokens"] for row in ended)


async def completed(client: openai.AsyncOpenAI, batch_id: str, least: int) -> None:
    async with asyncio.timeout(120):
        while True:
            batch = await client.batches.retrieve(batch_id)
            counts = batch.request_counts
            if batch.status == "completed" or counts.completed + counts.failed >= least:
                return


async def test_killed_again_and_again(url: str, tmp_path: Path) -> None:
    rng, count = random.Random(7), 60
    batch_id = ""
    for least in sorted(rng.sample(range(1, count - 10), 2)):
        async with child("tests.scenarios.jobs_server", url, str(tmp_path / "data")) as (process, address):
            async with openai.AsyncOpenAI(base_url=address + "/v1", api_key="x", timeout=120) as client:
                batch_id = batch_id or (await made(client, batch_of(count))).id
                await completed(client, batch_id, least)
            await asyncio.sleep(rng.random() * 0.02)  # anywhere in what the server does then
            process.kill()
    async with (
        child("tests.scenarios.jobs_server", url, str(tmp_path / "data"), ended_by=signal.SIGTERM) as (_, address),
        openai.AsyncOpenAI(base_url=address + "/v1", api_key="x", timeout=120) as client,
    ):
        await check(client, await ended(client, batch_id), count, url)


@asynccontextmanager
async def running(database: str, backend: Backend, **options: Any) -> AsyncIterator[tuple[AppState, str]]:
    state = make_state(backend, database=database, control={"job_lines": 4}, **options)
    state.keeping.start()
    state.runner.start()
    async with live(state) as address:
        yield state, address
    await state.close()
    await state.keeping.close()


async def test_what_a_stopping_server_cannot_finish_is_given_back(url: str) -> None:
    backend = FakeBackend(manual=True, max_sequences=4)
    async with (
        running(url, backend) as (state, address),
        openai.AsyncOpenAI(base_url=address + "/v1", api_key="x", timeout=120) as client,
    ):
        batch_id = (await made(client, batch_of(30))).id
        await until(lambda: state.pipeline.running == 4)
        await state.pipeline.drain(0)
        await until(lambda: not state.runner.running)
        state.runner.wake()
    kept = Database(url)
    async with kept.read() as connection:
        found = (await connection.execute(select(lines.c.state, lines.c.owner, lines.c.faults))).all()
    await kept.close()
    assert {tuple(row) for row in found} == {("pending", None, 0), ("failed", None, 0)}  # line 3 fails at once
    async with (
        running(url, FakeBackend(max_sequences=4)) as (_, address),
        openai.AsyncOpenAI(base_url=address + "/v1", api_key="x", timeout=120) as client,
    ):
        await check(client, await ended(client, batch_id), 30, url)


async def test_attempts_that_come_to_nothing_are_in_the_ledger_at_no_price(tmp_path: Path) -> None:
    """The first of each of four lines fails after two steps."""
    failed: list[str] = []

    def plan(request: GenerateRequest) -> Fault | None:
        if len(failed) >= 4:
            return None
        failed.append(request.id)
        return Fault(Kind.ERROR, 2)

    prices = Prices("EUR", {"fake": Price(output_million=10**9)})
    backend, database = FaultyBackend(FakeBackend(max_sequences=4), plan), f"sqlite:///{tmp_path / 'kept.db'}"
    async with (
        running(database, backend, policy=Policy(prices=prices)) as (state, address),
        openai.AsyncOpenAI(base_url=address + "/v1", api_key="x", timeout=120) as client,
    ):
        batch = await ended(client, (await made(client, batch_of(10))).id)
        await check(client, batch, 10, database)
        await until(lambda: state.ledger.written == 4)
        counted = state.metrics.token_counts()
        rows = await state.keeping.now.ledger.latest("default", 99) if state.keeping.now else []
    lost = [row for row in rows if row["outcome"] == "error"]
    assert (len(rows), len(lost)) == (14, 4)
    assert all(row["completion_tokens"] and not row["price"] for row in lost)
    assert all(row["price"] for row in rows if row["outcome"] == "ok")
    assert counted["generated"] == sum(row["completion_tokens"] for row in rows)
    assert counted["prompt"] == sum(row["prompt_tokens"] for row in rows)


async def work(backend: FakeBackend) -> None:
    while True:
        backend.step()
        await asyncio.sleep(0.001)


@needs_postgres
async def test_two_servers_share_a_batch_and_one_leaves(postgres: Postgres) -> None:
    """The one that stays has lines of its own all the time, which stand still until the other has left."""
    database = postgres.url("shared")
    stays, leaves = FakeBackend(manual=True, max_sequences=8), FakeBackend(step_seconds=0.01, max_sequences=8)
    async with (
        running(database, stays) as (_, address),
        openai.AsyncOpenAI(base_url=address + "/v1", api_key="x", timeout=120) as client,
    ):
        batch = await made(client, batch_of(60))
        await until(lambda: stays.started_ids)
        async with running(database, leaves):
            await completed(client, batch.id, 10)
        working = asyncio.create_task(work(stays))
        await check(client, await ended(client, batch.id), 60, database)
        working.cancel()
    assert leaves.started_ids


async def test_what_is_refused_for_now_is_tried_again(tmp_path: Path) -> None:
    """A tenant's own limit on requests, of which the batch needs more at once."""
    policy = Policy(tenants=(TenantPolicy("default", limits=Quota(requests_per_minute=1200)),))
    database = f"sqlite:///{tmp_path / 'kept.db'}"
    async with (
        running(database, FakeBackend(max_sequences=16), policy=policy) as (_, address),
        openai.AsyncOpenAI(base_url=address + "/v1", api_key="x", timeout=120) as client,
    ):
        held = [await client.chat.completions.create(**chat(max_tokens=1)) for _ in range(3)]
        assert len(held) == 3
        batch = await ended(client, (await made(client, batch_of(30))).id)
        await check(client, batch, 30, database)
