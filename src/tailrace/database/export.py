"""The ledger's rows with what was said of them, page by page, however many they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from sqlalchemy import Row, Select, select

from tailrace.database.database import Database
from tailrace.database.entry_id import entry_ids_from
from tailrace.database.feedback import feedback
from tailrace.database.ledger import ledger
from tailrace.frozen import frozen

_AT_ONCE = 2000  # rows, about 2 KiB each
_SAID = [feedback.c[name].label(f"feedback_{name}") for name in ("success", "score", "task", "comment")]
COLUMNS = [*ledger.columns, *_SAID]


@frozen
class Wanted:
    """Requests that were opened from `since` to before `until`, in seconds since the epoch; None: no bound. `tenant`
    empty: all."""

    since: float | None = None
    until: float | None = None
    tenant: str = ""


async def pages(database: Database, wanted: Wanted) -> AsyncIterator[Sequence[Row[tuple[object, ...]]]]:
    """Rows of COLUMNS, oldest first. Raises Unavailable."""
    after = ""
    while True:
        async with database.read() as connection:
            page = (await connection.execute(_query(wanted, after))).all()
        if page:
            yield page
        if len(page) < _AT_ONCE:
            return
        after = page[-1].entry_id


def _query(wanted: Wanted, after: str) -> Select[tuple[object, ...]]:
    query = select(*COLUMNS).select_from(ledger.outerjoin(feedback, feedback.c.entry_id == ledger.c.entry_id))
    if wanted.since is not None:
        query = query.where(ledger.c.entry_id >= entry_ids_from(wanted.since))
    if wanted.until is not None:
        query = query.where(ledger.c.entry_id < entry_ids_from(wanted.until))
    if wanted.tenant:
        query = query.where(ledger.c.tenant == wanted.tenant)
    if after:
        query = query.where(ledger.c.entry_id > after)
    return query.order_by(ledger.c.entry_id).limit(_AT_ONCE)
