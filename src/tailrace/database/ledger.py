"""The ledger: one row for each request that ended. Rows are what `observe.entry.Entry` makes of them.

Writing one twice changes nothing, so that what may have been written can be written again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, RowMapping, Table, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from tailrace.database.database import Database
from tailrace.database.entry_id import entry_ids_from
from tailrace.database.forgetting import forget
from tailrace.database.schema import Text, metadata

Row = Mapping[str, Any]

ledger = Table(
    "ledger",
    metadata,
    Column("entry_id", Text, primary_key=True),  # in order of time
    Column("request_id", Text, nullable=False),  # callers may repeat one
    Column("answer_id", Text, nullable=False),
    Column("server", Text, nullable=False),
    Column("opened", Float, nullable=False),
    Column("ended", Float, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("task", Text, nullable=False),
    Column("route", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("job_id", Text, nullable=False),
    Column("request_class", Text, nullable=False),
    Column("class_reason", Text, nullable=False),
    Column("bucket", Text, nullable=False),
    Column("attachments", Integer, nullable=False),
    Column("tools", Boolean, nullable=False),
    Column("streamed", Boolean, nullable=False),
    Column("model_asked", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("adapter", Text, nullable=False),
    Column("weights_format", Text, nullable=False),
    Column("kv_format", Text, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("drafted_tokens", BigInteger, nullable=False),
    Column("accepted_tokens", BigInteger, nullable=False),
    Column("recomputed_tokens", BigInteger, nullable=False),
    Column("preemptions", BigInteger, nullable=False),
    Column("kv_blocks", BigInteger, nullable=False),
    Column("phases", Text, nullable=False),  # JSON: microseconds by phase
    Column("queue_us", BigInteger, nullable=False),
    Column("ttft_us", BigInteger),
    Column("tpot_us", Float),
    Column("total_us", BigInteger, nullable=False),
    Column("device_us", BigInteger, nullable=False),
    Column("measured_us", BigInteger, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("status", Integer, nullable=False),
    Column("error_code", Text, nullable=False),
    Column("error_domain", Text, nullable=False),
    Column("predicted_ttft", Float),
    Column("deadline_met", Boolean),
    Column("decisions", Text, nullable=False),  # JSON
    Column("price", BigInteger, nullable=False),  # millionths
    Index(None, "tenant", "entry_id"),
    Index(None, "tenant", "ended"),  # what was spent of a budget
    Index(None, "request_id"),
    Index(None, "answer_id"),
)


_NAMES = tuple(column.name for column in ledger.columns)
_VALUES = itemgetter(*_NAMES)


async def insert_entries(connection: AsyncConnection, rows: Sequence[Row]) -> None:
    """Write rows (`Entry.row()`) within the caller's transaction. Those that are there stay as they are.

    In the driver's own words: SQLAlchemy takes ten times as long for each row, on the event loop.
    """
    if not rows:
        return
    sqlite = connection.dialect.name == "sqlite"
    places = ", ".join("?" if sqlite else f"${number}" for number in range(1, len(_NAMES) + 1))
    names = ", ".join(f'"{name}"' for name in _NAMES)
    statement = f"INSERT INTO ledger ({names}) VALUES ({places}) ON CONFLICT DO NOTHING"
    await connection.exec_driver_sql(statement, [_VALUES(row) for row in rows])


class LedgerTable:
    """The table of one database. Raises Unavailable where that is away."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, rows: Sequence[Row]) -> None:
        """All or none."""
        async with self._database.write() as connection:
            await insert_entries(connection, rows)

    async def find(self, tenant: str, name: str) -> RowMapping | None:
        """A tenant's row by any of its ids; the newest of an id that was repeated."""
        named = or_(ledger.c.entry_id == name, ledger.c.request_id == name, ledger.c.answer_id == name)
        query = select(ledger).where(named, ledger.c.tenant == tenant).order_by(ledger.c.entry_id.desc()).limit(1)
        async with self._database.read() as connection:
            return (await connection.execute(query)).mappings().first()

    async def latest(self, tenant: str, count: int, before: str = "") -> Sequence[RowMapping]:
        """A tenant's newest rows, newest first: those below an entry id where one is given."""
        query = select(ledger).where(ledger.c.tenant == tenant).order_by(ledger.c.entry_id.desc()).limit(count)
        if before:
            query = query.where(ledger.c.entry_id < before)
        async with self._database.read() as connection:
            return (await connection.execute(query)).mappings().all()

    async def forget(self, before: float) -> int:
        """Rows of requests that were opened before, in seconds since the epoch; how many there were."""
        return await forget(self._database, ledger.c.entry_id, ledger.c.entry_id < entry_ids_from(before))
