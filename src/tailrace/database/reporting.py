"""The ledger's rows as reports read them: page by page, in the order in which requests came."""

from __future__ import annotations

from collections.abc import AsyncIterator

from sqlalchemy import select

from tailrace.database.database import Database
from tailrace.database.entry_id import entry_ids_from
from tailrace.database.feedback import feedback
from tailrace.database.ledger import ledger
from tailrace.database.report_line import Line

_PAGE = 1000  # rows: what one look at the database may hold up


class Reporting:
    """Raises Unavailable where the database is away."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def pages(self, since: float, until: float, tenant: str = "") -> AsyncIterator[list[Line]]:
        """Rows of requests that were opened from `since` to before `until`, in seconds since the epoch."""
        columns = [feedback.c.success if name == "success" else ledger.c[name] for name in Line._fields]
        joined = ledger.outerjoin(feedback, feedback.c.entry_id == ledger.c.entry_id)
        query = select(*columns).select_from(joined).where(ledger.c.entry_id < entry_ids_from(until))
        if tenant:
            query = query.where(ledger.c.tenant == tenant)
        query = query.order_by(ledger.c.entry_id).limit(_PAGE)
        place = ledger.c.entry_id >= entry_ids_from(since)
        while True:
            async with self._database.read() as connection:
                lines = [Line._make(row) for row in await connection.execute(query.where(place))]
            if lines:
                yield lines
            if len(lines) < _PAGE:
                return
            place = ledger.c.entry_id > lines[-1].entry_id
