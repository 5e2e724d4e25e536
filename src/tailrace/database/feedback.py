"""What callers say of how their requests served them: for each row of the ledger at most once, the last word counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Boolean, Column, Float, RowMapping, Table, exists, select

from tailrace.database.database import Database
from tailrace.database.dialect import insert
from tailrace.database.entry_id import entry_ids_from
from tailrace.database.forgetting import forget
from tailrace.database.ledger import ledger
from tailrace.database.schema import Text, metadata

feedback = Table(
    "feedback",
    metadata,
    Column("entry_id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("success", Boolean),
    Column("score", Float, nullable=False),  # 0 to 1; that of success and failure alone
    Column("task", Text, nullable=False),
    Column("comment", Text, nullable=False),
    Column("at", Float, nullable=False),
)


class FeedbackTable:
    """Every call raises Unavailable while the database is away."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, row: dict[str, Any]) -> None:
        """In the place of what was said before."""
        async with self._database.write() as connection:
            new = insert(connection, feedback).values(row)
            said = {name: value for name, value in row.items() if name != "entry_id"}
            await connection.execute(new.on_conflict_do_update(index_elements=["entry_id"], set_=said))

    async def of(self, entry_ids: Sequence[str]) -> dict[str, RowMapping]:
        """By entry id, where something was said."""
        if not entry_ids:
            return {}
        query = select(feedback).where(feedback.c.entry_id.in_(entry_ids))
        async with self._database.read() as connection:
            return {row["entry_id"]: row for row in (await connection.execute(query)).mappings()}

    async def forget(self, before: float) -> int:
        """What was said of requests that were opened before, in seconds since the epoch, and are in no ledger; of how
        many."""
        old = (feedback.c.entry_id < entry_ids_from(before)) & ~exists().where(ledger.c.entry_id == feedback.c.entry_id)
        return await forget(self._database, feedback.c.entry_id, old)
