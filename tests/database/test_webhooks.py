"""Webhooks on both databases: written with their subject, claimed by one, the same id at every try."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tailrace.database.database import Database
from tailrace.database.webhooks import Webhook, Webhooks, add_webhook, ready_webhook


async def test_a_try_is_one_servers_alone(url: str) -> None:
    database, other = Database(url), Database(url)
    await database.open()
    async with database.write() as connection:
        for number in range(20):
            await add_webhook(connection, Webhook(f"evt_{number}", "a", f"job_{number}", "https://x"), 1.0)
    first, second = Webhooks(database), Webhooks(other)
    assert await first.claim(2.0, 60.0, 50) == []  # their subjects go on
    async with database.write() as connection:
        for number in range(20):
            await ready_webhook(connection, f"job_{number}", "{}", 3.0)
    claimed = await asyncio.gather(*(each.claim(4.0, 60.0, 50) for each in (first, second, first)))
    assert sorted(each.id for some in claimed for each in some) == sorted(f"evt_{number}" for number in range(20))
    assert await first.claim(5.0, 60.0, 50) == []
    mine = {each.id: each for some in claimed for each in some}
    await first.tried(replace(mine["evt_0"], state="delivered", attempts=1, due=6.0, status=200))
    await first.tried(replace(mine["evt_1"], attempts=1, due=6.0, status=500))
    again = await second.claim(7.0, 60.0, 50)
    assert [(each.id, each.body, each.attempts, each.status) for each in again] == [("evt_1", "{}", 1, 500)]
    assert len(await second.claim(64.0, 60.0, 50)) == 18  # a lease is over, its server may be dead
    kept = await first.of("a", "job_0")
    assert kept is not None
    assert (kept.state, kept.attempts, kept.status) == ("delivered", 1, 200)
    assert await first.of("b", "job_0") is None
    await first.forget(2.0)
    assert await first.of("a", "job_0") is None
    assert await first.of("a", "job_1") is not None
    await database.close()
    await other.close()
