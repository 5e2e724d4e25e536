"""Webhooks until they have arrived or been given up, and what became of them.

One is written with the job that it is about, waits until that has ended, and has the same id at every try. A try is
claimed by moving the time of the next one, so that no two servers make the same.
"""

from __future__ import annotations

from sqlalchemy import Column, ColumnElement, Float, Integer, Row, Table, Text, delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from tailrace.database.database import Database
from tailrace.database.schema import metadata
from tailrace.frozen import frozen

WAITING, DELIVERED, FAILED = "waiting", "delivered", "failed"

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


@frozen
class Webhook:
    """`subject`: the id of what it is about. `due`: when it is tried next, in seconds since the epoch; None: when its
    subject has ended. `status` and `error`: of the last try."""

    id: str
    tenant: str
    subject: str
    url: str
    body: str = ""
    state: str = WAITING
    attempts: int = 0
    due: float | None = None
    status: int | None = None
    error: str | None = None


async def add_webhook(connection: AsyncConnection, webhook: Webhook, now: float) -> None:
    """Within the transaction that writes its subject."""
    await connection.execute(webhooks.insert(), {**_values(webhook), "created": now})


async def ready_webhook(connection: AsyncConnection, subject: str, body: str, now: float) -> None:
    """Within the transaction that ends its subject: it can be sent."""
    mine = (webhooks.c.subject == subject, webhooks.c.due.is_(None), webhooks.c.state == WAITING)
    await connection.execute(update(webhooks).where(*mine).values(body=body, due=now))


class Webhooks:
    """Every call raises Unavailable while the database is away. Times are seconds since the epoch."""

    def __init__(self, database: Database) -> None:
        self._database = database

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
        """What became of a try: how it stands now, and when the next one is due while it waits."""
        names = ("state", "attempts", "due", "status", "error")
        values = {name: getattr(webhook, name) for name in names}
        async with self._database.write() as connection:
            await connection.execute(update(webhooks).where(webhooks.c.id == webhook.id).values(values))

    async def of(self, tenant: str, subject: str) -> Webhook | None:
        mine: tuple[ColumnElement[bool], ...] = (webhooks.c.tenant == tenant, webhooks.c.subject == subject)
        async with self._database.read() as connection:
            row = (await connection.execute(select(webhooks).where(*mine))).first()
        return None if row is None else _webhook(row)

    async def forget(self, before: float) -> None:
        """Those that have ended and were made before."""
        old = (webhooks.c.state != WAITING, webhooks.c.created < before)
        async with self._database.write() as connection:
            await connection.execute(delete(webhooks).where(*old))


def _values(webhook: Webhook) -> dict[str, object]:
    return {name: getattr(webhook, name) for name in Webhook.__dataclass_fields__}


def _webhook(row: Row[tuple[object, ...]]) -> Webhook:
    return Webhook(**{name: getattr(row, name) for name in Webhook.__dataclass_fields__})
