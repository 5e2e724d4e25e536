"""When to look for what is too old, and that no look holds other writes up for long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncConnection

from tailrace.clock import ManualClock
from tailrace.database.database import Database
from tailrace.database.feedback import FeedbackTable, feedback
from tailrace.database.forgetting import AT_ONCE
from tailrace.database.retention import Retention
from tailrace.database.webhooks import Webhooks, webhooks


class Counted(Database):
    """Counts its writing transactions."""

    writes = 0

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        self.writes += 1
        async with super().write() as connection:
            yield connection


def test_a_look_at_first_and_then_each_hour() -> None:
    clock = ManualClock(wall=10_000.0)
    kept = Retention(400.0, clock)
    assert (kept.since, kept.due(), kept.due()) == (9_600.0, True, False)
    clock.advance(3599.0)
    assert not kept.due()
    clock.advance(1.0)
    assert (kept.due(), kept.due(), kept.since) == (True, False, 13_200.0)


def test_what_is_kept_for_ever_is_never_looked_for() -> None:
    kept = Retention(0.0, ManualClock())
    assert (kept.due(), kept.since) == (False, 0.0)


async def test_old_webhooks_and_feedback_go_in_bounded_transactions(url: str) -> None:
    database = Counted(url)
    await database.open()
    many = AT_ONCE + 100
    hook = {"tenant": "a", "subject": "", "url": "", "body": "", "state": "delivered", "attempts": 1}
    said = {"tenant": "a", "success": True, "score": 1.0, "task": "", "comment": "", "at": 1.0}
    async with database.write() as connection:
        await connection.execute(webhooks.insert(), [{**hook, "id": f"{n}", "created": n} for n in range(many + 7)])
        await connection.execute(feedback.insert(), [{**said, "entry_id": f"{n:032x}"} for n in range(many)])
    for forgetting in Webhooks(database).forget(many), FeedbackTable(database).forget(1e9):
        before = database.writes
        assert await forgetting == many
        assert database.writes - before == 2
    await database.close()
