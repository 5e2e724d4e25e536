"""What reports read of the ledger, on both databases: all of a span, once, with what was said of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from tailrace.control.report.made import gather
from tailrace.control.report.question import Question
from tailrace.database import reporting
from tailrace.database.database import Database
from tailrace.database.entry_id import new_entry_id
from tailrace.database.feedback import FeedbackTable
from tailrace.database.ledger import LedgerTable
from tailrace.database.report_line import Line
from tailrace.database.reporting import Reporting
from tailrace.observe.entry import Entry
from tests.database.test_ledger import entry


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    database = Database(url)
    await database.open()
    yield database
    await database.close()


def at(opened: float, **fields: Any) -> Entry:
    return replace(entry(0), entry_id=new_entry_id(opened), opened=opened, **fields)


async def read(database: Database, since: float, until: float, tenant: str = "") -> list[Line]:
    return [line async for page in Reporting(database).pages(since, until, tenant) for line in page]


async def test_every_row_of_a_span_is_read_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "_PAGE", 7)
    rows = [at(1000.0 + n, tenant="acme" if n % 3 else "other", price=n) for n in range(40)]
    await LedgerTable(database).add([row.row() for row in reversed(rows)])
    assert [line.price for line in await read(database, 1000, 1040)] == list(range(40))
    assert [line.price for line in await read(database, 1005, 1019)] == list(range(5, 19))  # two pages, to the last row
    assert [line.price for line in await read(database, 1000, 1010, "other")] == [0, 3, 6, 9]
    assert await read(database, 2000, 3000) == []


async def test_a_line_is_what_the_row_says_and_what_was_said_of_it(database: Database) -> None:
    rows = [at(1000.0 + n, deadline_met=(None, True, False)[n], ttft_us=(None, 5, 6)[n]) for n in range(3)]
    await LedgerTable(database).add([row.row() for row in rows])
    for row, success in zip(rows[1:], (True, False), strict=True):
        said = {"tenant": "acme", "success": success, "score": 0.5, "task": "", "comment": "", "at": 1.0}
        await FeedbackTable(database).put({"entry_id": row.entry_id, **said})
    lines = await read(database, 0, 5000)
    assert [(line.deadline_met, line.ttft_us, line.success) for line in lines] == [
        (None, None, None),
        (True, 5, True),
        (False, 6, False),
    ]
    plain = {name: getattr(rows[0], name) for name in Line._fields if name != "success"}
    assert {name: value for name, value in lines[0]._asdict().items() if name != "success"} == plain
    report = await gather(Reporting(database), Question(0, 5000, ("tenant",)))
    assert report.data("EUR")["total"]["success"] == {"told": 2, "succeeded": 1}
