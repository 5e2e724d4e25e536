"""The ledger's table on both kinds of databases."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tailrace.database.database import Database
from tailrace.database.ledger import LedgerTable, insert_entries
from tailrace.observe.entry import About, Entry
from tests.observe.test_entry import closed, made


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    database = Database(url)
    await database.open()
    yield database
    await database.close()


def entry(number: int, tenant: str = "acme") -> Entry:
    return made(closed(), About(f"r{number}", f"a{number}", "chat", tenant), ended=1000.0 + number)


async def test_rows_are_read_as_they_were_written(database: Database) -> None:
    table, written = LedgerTable(database), made(closed(deadline=0.5, admission=None, band=1))
    await table.add([written.row()])
    for name in (written.entry_id, written.request_id, written.answer_id):
        found = await table.find("acme", name)
        assert found is not None and Entry.of_row(dict(found)) == written
    assert await table.find("other", written.entry_id) is None
    assert await table.find("acme", "nothing") is None


async def test_writing_again_changes_nothing(database: Database) -> None:
    table, rows = LedgerTable(database), [entry(n).row() for n in range(3)]
    await table.add(rows[:2])
    await table.add([{**rows[0], "tenant": "other"}, *rows])
    assert [row["request_id"] for row in await table.latest("acme", 10)] == ["r2", "r1", "r0"]


async def test_rows_are_written_with_what_belongs_to_them_or_not_at_all(database: Database) -> None:
    with pytest.raises(ZeroDivisionError):
        async with database.write() as connection:
            await insert_entries(connection, [entry(1).row()])
            1 / 0  # noqa: B018
    assert await LedgerTable(database).latest("acme", 10) == []


async def test_the_latest_by_pages(database: Database) -> None:
    table = LedgerTable(database)
    await table.add([entry(n, "acme" if n % 2 else "other").row() for n in range(10)])
    first = await table.latest("acme", 3)
    rest = await table.latest("acme", 3, before=first[-1]["entry_id"])
    assert [row["request_id"] for row in [*first, *rest]] == ["r9", "r7", "r5", "r3", "r1"]
