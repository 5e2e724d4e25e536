"""Webhooks until they have arrived or been given up, and what became of them.

One is written before the job that it is about, waits until that has ended, and has the same id at every try. A try is
claimed by moving the time of the next one, so that no two servers make the same.
"""

from __future__ import annotations

from collections.abc import Callable
from os import urandom

from sqlalchemy import Column, ColumnElement, Float, Integer, Row, Table, func, or_, select, update

from tailrace.database.database import Database
from tailrace.database.forgetting import forget
from tailrace.database.job import LineState
from tailrace.database.jobs import jobs, lines
from tailrace.database.schema import Text, metadata
from tailrace.database.webhook import WAITING, Webhook

webhooks = Table(
    "webhooks",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("subject", Text, nullable=False, index=True),
    Column("url", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("due", Float, index=True),
    Column("status", Integer),
    Column("error", Text),
    Column("created", Float, nullable=False),
)


class Webhooks:
    """Every call raises Unavailable while the database is away. Times are seconds since the epoch."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, tenant: str, subject: str, url: str, now: float) -> Webhook:
        """It waits for the end of the job that is its subject, which may be added later."""
        made = Webhook(f"evt_{urandom(16).hex()}", tenant, subject, url)
        values = {name: getattr(made, name) for name in Webhook.__dataclass_fields__}
        async with self._database.write() as connection:
            await connection.execute(webhooks.insert(), {**values, "created": now})
        return made

    async def ripen(self, now: float, body: Callable[[Webhook, str, str], str]) -> None:
        """Those whose jobs have ended can be sent. `body` of one is made with the job's kind and its line's state."""
        over = (lines.c.state.not_in((LineState.PENDING, LineState.RUNNING)), lines.c.number == 0)
        query = (
            select(webhooks, jobs.c.kind, lines.c.state.label("ended_as"))
            .join(jobs, jobs.c.id == webhooks.c.subject)
            .join(lines, lines.c.job == webhooks.c.subject)
            .where(webhooks.c.due.is_(None), webhooks.c.state == WAITING, *over)
        )
        async with self._database.read() as connection:
            found = (await connection.execute(query)).all()
        if not found:
            return
        async with self._database.write() as connection:
            for row in found:
                text = body(_webhook(row), row.kind, row.ended_as)
                same = (webhooks.c.id == row.id, webhooks.c.due.is_(None))
                await connection.execute(update(webhooks).where(*same).values(body=text, due=now))

    async def claim(self, now: float, lease: float, most: int) -> list[Webhook]:
        """Those that are due: a try is the caller's until the lease is over."""
        due = select(webhooks).where(webhooks.c.state == WAITING, webhooks.c.due <= now)
        mine = []
        async with self._database.read() as connection:
            found = (await connection.execute(due.order_by(webhooks.c.due).limit(most))).all()
        if not found:
            return []
        async with self._database.write() as connection:
            for row in found:
                same = (webhooks.c.id == row.id, webhooks.c.state == WAITING, webhooks.c.due == row.due)
                taken = update(webhooks).where(*same).values(due=now + lease)
                if (await connection.execute(taken)).rowcount:
                    mine.append(_webhook(row))
        return mine

    async def tried(self, webhook: Webhook) -> None:
        """What became of a try: how it stands now, and when the next one is due; none is once it is over."""
        names = ("state", "attempts", "due", "status", "error")
        values = {name: getattr(webhook, name) for name in names}
        async with self._database.write() as connection:
            await connection.execute(update(webhooks).where(webhooks.c.id == webhook.id).values(values))

    async def pending(self) -> int:
        """How many are to be sent, now or later."""
        query = select(func.count()).select_from(webhooks).where(webhooks.c.due.is_not(None))
        async with self._database.read() as connection:
            return (await connection.execute(query)).scalar_one()

    async def of(self, tenant: str, subject: str) -> Webhook | None:
        mine: tuple[ColumnElement[bool], ...] = (webhooks.c.tenant == tenant, webhooks.c.subject == subject)
        async with self._database.read() as connection:
            row = (await connection.execute(select(webhooks).where(*mine))).first()
        return None if row is None else _webhook(row)

    async def forget(self, before: float) -> int:
        """Those that were made before and wait for nothing that could still happen; how many there were."""
        over = or_(webhooks.c.state != WAITING, webhooks.c.due.is_(None))
        return await forget(self._database, webhooks.c.id, over & (webhooks.c.created < before))


def _webhook(row: Row[tuple[object, ...]]) -> Webhook:
    return Webhook(**{name: getattr(row, name) for name in Webhook.__dataclass_fields__})
