"""Webhooks on both databases: written with their subject, claimed by one, the same id at every try."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tailrace.database.database import Database
from tailrace.database.job import Job, JobState, NewLine
from tailrace.database.jobs import Jobs
from tailrace.database.webhook import Webhook
from tailrace.database.webhooks import Webhooks


def told(webhook: Webhook, kind: str, ended_as: str) -> str:
    return f"{kind} {ended_as}"


async def test_a_try_is_one_servers_alone(url: str) -> None:
    database, other = Database(url), Database(url)
    await database.open()
    first, second, jobs = Webhooks(database), Webhooks(other), Jobs(database)
    made = [await first.add("a", f"job_{number}", "https://x", 1.0) for number in range(20)]
    for number in range(20):
        job = Job(f"job_{number}", "request", "a", "", "/v1/completions", 1.0, 99.0, state=JobState.IN_PROGRESS)
        await jobs.add(job, [NewLine(0, "", "/v1/completions", "fake", "{}")])
    await first.ripen(2.0, told)
    assert await first.claim(2.0, 60.0, 50) == []  # their subjects go on
    for number in range(20):
        await jobs.cancel("a", "request", f"job_{number}", 3.0)
    await asyncio.gather(first.ripen(3.0, told), second.ripen(3.0, told))
    claimed = await asyncio.gather(*(each.claim(4.0, 60.0, 50) for each in (first, second, first)))
    assert sorted(each.id for some in claimed for each in some) == sorted(each.id for each in made)
    assert await first.claim(5.0, 60.0, 50) == []
    mine = {each.id: each for some in claimed for each in some}
    await first.tried(replace(mine[made[0].id], state="delivered", attempts=1, due=6.0, status=200))
    await first.tried(replace(mine[made[1].id], attempts=1, due=6.0, status=500))
    again = await second.claim(7.0, 60.0, 50)
    assert [(each.id, each.body, each.attempts, each.status) for each in again] == [
        (made[1].id, "request cancelled", 1, 500)
    ]
    assert len(await second.claim(64.0, 60.0, 50)) == 18  # a lease is over, its server may be dead
    kept = await first.of("a", "job_0")
    assert kept is not None
    assert (kept.state, kept.attempts, kept.status) == ("delivered", 1, 200)
    assert await first.of("b", "job_0") is None
    await first.add("a", "job_orphan", "https://x", 1.0)  # whoever was to add its job was killed
    await first.forget(2.0)
    assert await first.of("a", "job_orphan") is None
    assert await first.of("a", "job_0") is None
    assert await first.of("a", "job_1") is not None
    await database.close()
    await other.close()
