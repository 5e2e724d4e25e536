"""Jobs and their lines in a real database: claims, leases, ends; and any order of them against a simple model."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from tailrace.database.database import Database
from tailrace.database.job import Counts, Job, JobState, Line, LineState, NewLine, Result
from tailrace.database.jobs import Jobs
from tailrace.database.ledger import LedgerTable, ledger
from tailrace.database.response import KeptResponse
from tailrace.database.responses import Responses
from tests.observe.test_entry import closed, made

DONE = Result(LineState.DONE, 200, "{}")
MODELS = {"batch_1": ("m",)}


def job(name: str = "batch_1", **fields: Any) -> Job:
    return replace(Job(name, "batch", "acme", "key", "/v1/chat/completions", 1.0, 1000.0), **fields)


def new(number: int, model: str = "m") -> NewLine:
    return NewLine(number, f"id-{number}", "/v1/chat/completions", model, "{}")


def row(line: Line) -> dict[str, Any]:
    entry_id = f"e{line.number}-{line.attempts}"
    return {**made(closed(prompt_tokens=3, completion_tokens=2, price=7)).row(), "entry_id": entry_id}


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    made = Database(url)
    await made.open()
    yield made
    await made.close()


async def started(jobs: Jobs, count: int, name: str = "batch_1") -> None:
    await jobs.add(job(name))
    await jobs.add_lines(name, [new(i) for i in range(count)])
    assert await jobs.begin(name, count, 2.0)


async def test_each_line_is_claimed_once_however_many_ask(database: Database) -> None:
    jobs = Jobs(database)
    await started(jobs, 20)
    claims = [jobs.claim(f"server{i}", {"batch_1": 4}, MODELS, 10.0, 40.0) for i in range(5)]
    claimed = [line.number for lines in await asyncio.gather(*claims) for line in lines]
    left = await jobs.claim("last", {"batch_1": 20}, MODELS, 10.0, 40.0)  # locked rows were skipped, not waited for
    assert sorted(claimed + [line.number for line in left]) == list(range(20))


async def test_a_line_ends_once_by_its_latest_claimant(database: Database) -> None:
    jobs, table = Jobs(database), LedgerTable(database)
    await started(jobs, 1)
    (first,) = await jobs.claim("a", {"batch_1": 5}, MODELS, 10.0, 40.0)
    assert await jobs.claim("b", {"batch_1": 5}, MODELS, 39.0, 69.0) == []
    (second,) = await jobs.claim("b", {"batch_1": 5}, MODELS, 41.0, 71.0)
    assert (first.attempts, second.attempts, second.body) == (1, 2, "{}")
    assert await jobs.renew("a", [first.name], 80.0) == set()
    assert await jobs.renew("b", [second.name], 80.0) == {second.name}
    assert not await jobs.finish(first, "a", DONE, row(first), 42.0)
    assert await jobs.finish(second, "b", DONE, row(second), 43.0)
    assert not await jobs.finish(second, "b", DONE, row(second), 44.0)
    rows = [(each["entry_id"], each["outcome"], each["price"]) for each in await table.latest("acme", 9)]
    assert rows == [("e0-2", "ok", 7), ("e0-1", "cancelled", 0)]  # of the attempt that came too late, at nobody's cost
    found = await jobs.find("acme", "batch", "batch_1")
    assert found is not None and found[1] == Counts(1, 1, 0, 3, 0, 2)


async def test_an_output_is_not_there_without_its_row(database: Database) -> None:
    jobs = Jobs(database)
    await started(jobs, 1)
    (line,) = await jobs.claim("a", {"batch_1": 1}, MODELS, 10.0, 40.0)
    with pytest.raises(Exception):  # noqa: B017 - each database has its own word for it
        await jobs.finish(line, "a", DONE, {**row(line), "outcome": None}, 11.0)
    assert [each.state for each in await jobs.ended_lines("batch_1", -1, 9)] == [LineState.RUNNING]


async def test_a_response_is_kept_with_its_line_or_not_at_all(database: Database) -> None:
    jobs, responses = Jobs(database), Responses(database)
    await started(jobs, 3)
    lost, failing, whole = await jobs.claim("a", {"batch_1": 3}, MODELS, 10.0, 40.0)
    assert len(await jobs.claim("b", {"batch_1": 1}, MODELS, 41.0, 71.0)) == 1
    made = {
        line.number: replace(DONE, kept=KeptResponse(f"r{line.number}", b"{}", b"[]"))
        for line in (lost, failing, whole)
    }
    assert not await jobs.finish(lost, "a", made[0], row(lost), 42.0)
    with pytest.raises(Exception):  # noqa: B017 - each database has its own word for it
        await jobs.finish(failing, "a", made[1], {**row(failing), "outcome": None}, 42.0)
    assert await jobs.finish(whole, "a", made[2], row(whole), 42.0)
    assert [await responses.get("acme", f"r{number}", 0.0) for number in range(3)] == [None, None, made[2].kept]


async def test_a_server_that_comes_back_has_its_lines_at_once(database: Database) -> None:
    jobs = Jobs(database)
    await started(jobs, 3)
    await jobs.claim("a", {"batch_1": 2}, MODELS, 10.0, 1e9)
    await jobs.claim("b", {"batch_1": 1}, MODELS, 10.0, 1e9)
    assert await jobs.reclaim("a") == 2
    assert [line.number for line in await jobs.claim("c", {"batch_1": 9}, MODELS, 11.0, 40.0)] == [0, 1]


async def test_cancelling_ends_what_has_not_and_bills_what_was_made(database: Database) -> None:
    jobs, table = Jobs(database), LedgerTable(database)
    await started(jobs, 3)
    done, running = await jobs.claim("a", {"batch_1": 2}, MODELS, 10.0, 40.0)
    assert await jobs.finish(done, "a", DONE, row(done), 11.0)
    assert not await jobs.cancel("other", "batch", "batch_1", 12.0)
    assert await jobs.cancel("acme", "batch", "batch_1", 12.0)
    assert not await jobs.cancel("acme", "batch", "batch_1", 12.0)
    assert await jobs.renew("a", [running.name], 80.0) == set()
    for _ in range(2):
        await jobs.finish(running, "a", DONE, row(running), 13.0)
    states = [each.state for each in await jobs.ended_lines("batch_1", -1, 9)]
    assert states == [LineState.DONE, LineState.CANCELLED, LineState.CANCELLED]
    assert len(await table.latest("acme", 9)) == 2
    (due,) = await jobs.due("a", 14.0)
    assert (due.job.state, due.open, due.ready) == (JobState.CANCELLING, False, False)
    assert await jobs.end(due.job, None, None, 15.0)
    found = await jobs.find("acme", "batch", "batch_1")
    assert found is not None and found[0].state == JobState.CANCELLED and found[1].completed == 1


async def test_what_is_due(database: Database) -> None:
    jobs = Jobs(database)
    await jobs.add(job("batch_0"), owner="a", lease=20.0)
    await started(jobs, 1)
    assert [(d.job.id, d.leased, d.open, d.ready) for d in await jobs.due("b", 10.0)] == [
        ("batch_0", True, False, False),
        ("batch_1", False, True, True),
    ]
    assert not (await jobs.due("a", 10.0))[0].leased
    assert not await jobs.take(job("batch_0"), "b", 10.0, 40.0)
    assert await jobs.take(job("batch_0"), "b", 21.0, 40.0)
    (line,) = await jobs.claim("a", {"batch_1": 1}, MODELS, 10.0, 40.0)
    assert not (await jobs.due("b", 30.0))[1].ready
    assert (await jobs.due("b", 41.0))[1].ready
    assert not await jobs.finalize("batch_1", 42.0)
    assert await jobs.finish(line, "a", DONE, row(line), 42.0)
    assert await jobs.finalize("batch_1", 42.0)
    assert await jobs.refuse("batch_0", [{"code": "x"}], 50.0)
    failed = await jobs.find("acme", "batch", "batch_0")
    assert failed is not None and (failed[0].state, failed[0].errors) == (JobState.FAILED, [{"code": "x"}])


async def test_lines_of_other_models_are_left(database: Database) -> None:
    jobs = Jobs(database)
    await jobs.add(job(), [new(0, "other"), new(1)])
    await jobs.begin("batch_1", 2, 2.0)
    assert [line.number for line in await jobs.claim("a", {"batch_1": 5}, MODELS, 10.0, 40.0)] == [1]


async def test_pages(database: Database) -> None:
    jobs = Jobs(database)
    for number in range(4):
        await jobs.add(job(f"batch_{number}", created=float(number), tenant="acme" if number else "other"))
    first = await jobs.page("acme", "batch", None, 2)
    assert first is not None and [each.id for each, _ in first] == ["batch_3", "batch_2"]
    rest = await jobs.page("acme", "batch", "batch_2", 9)
    assert rest is not None and [each.id for each, _ in rest] == ["batch_1"]
    assert await jobs.page("acme", "batch", "batch_0", 9) is None


@pytest.mark.parametrize("seed", range(3))
async def test_any_order_of_steps(database: Database, seed: int) -> None:
    """Claims, ends, crashes, lapses and one cancelling at random: a line ends once, with one row."""
    rng, now, count = random.Random(seed), 10.0, 12
    jobs = Jobs(database)
    await jobs.add(job(expires=1e9))
    await jobs.add_lines("batch_1", [new(i) for i in range(count)])
    await jobs.begin("batch_1", count, now)
    held: dict[str, list[Any]] = {"a": [], "b": [], "c": []}
    finished: Counter[int] = Counter()
    for _ in range(60):
        owner, step = rng.choice(sorted(held)), rng.randrange(7)
        mine = held[owner]
        if step <= 1:
            mine += await jobs.claim(owner, {"batch_1": rng.randrange(1, 4)}, MODELS, now, now + 30)
        elif step == 2 and mine:
            one = mine.pop(rng.randrange(len(mine)))
            finished[one.number] += await jobs.finish(one, owner, DONE, row(one), now)
        elif step == 3 and mine:
            await jobs.give_back([(mine.pop(), 0)], owner)
        elif step == 4:
            mine.clear()  # it was killed, and has come back
            await jobs.reclaim(owner)
        elif step == 5:
            now += rng.choice((1.0, 31.0))
        else:
            still = await jobs.renew(owner, [one.name for one in mine], now + 30)
            assert still <= {one.name for one in mine}
    while left := await jobs.claim("last", {"batch_1": count}, MODELS, now + 100, now + 200):
        for one in left:
            finished[one.number] += await jobs.finish(one, "last", DONE, row(one), now)
    assert finished == Counter(range(count))
    assert await jobs.finalize("batch_1", now)
    async with database.read() as connection:
        assert len((await connection.execute(select(ledger.c.entry_id))).all()) == count
