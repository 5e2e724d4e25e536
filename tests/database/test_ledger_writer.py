"""Entries on their way into the database: batches, a database that is away, a full file, an end in the middle."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tailrace.clock import SystemClock
from tailrace.database.keeping import Keeping
from tailrace.database.ledger import LedgerTable
from tailrace.errors import Unavailable
from tailrace.observe.ledger import Ledger
from tailrace.observe.spill import Spill
from tests.database.test_ledger import entry
from tests.serving import until


class Away:
    """Makes a ledger's table say that its database does not answer, while `away`."""

    def __init__(self, table: LedgerTable) -> None:
        self.away = False
        self.batches: list[int] = []
        self._add = table.add
        table.add = self.add  # type: ignore[method-assign]

    async def add(self, rows: Sequence[Any]) -> None:
        if self.away:
            raise Unavailable("away")
        await self._add(rows)
        self.batches.append(len(rows))


@pytest.fixture
async def keeping(url: str) -> AsyncIterator[Keeping]:
    keeping = Keeping(url)
    keeping.start()
    await keeping.opened()
    yield keeping
    await keeping.close()


def away(keeping: Keeping) -> Away:
    assert keeping.now is not None
    return Away(keeping.now.ledger)


async def there(keeping: Keeping) -> list[str]:
    """Request ids, oldest first."""
    assert keeping.now is not None
    return [row["request_id"] for row in reversed(await keeping.now.ledger.latest("acme", 10_000))]


def replaced(keeping: Keeping, add: Callable[[Sequence[Any]], Awaitable[None]]) -> None:
    """How rows are written from now on."""
    assert keeping.now is not None
    keeping.now.ledger.add = add  # type: ignore[method-assign]


def ids(first: int, last: int) -> list[str]:
    return [f"r{n}" for n in range(first, last)]


async def test_entries_are_written_together(keeping: Keeping) -> None:
    ledger, database = Ledger(keeping, SystemClock()), away(keeping)
    for n in range(250):
        ledger.add(entry(n))
    await until(lambda: ledger.written == 250)
    assert database.batches == [200, 50]
    assert await there(keeping) == ids(0, 250)
    await ledger.close()


async def test_what_waits_is_written_at_the_end(keeping: Keeping) -> None:
    ledger = Ledger(keeping, SystemClock(), flush=3600)
    for n in range(3):
        ledger.add(entry(n))
    await ledger.close()
    assert await there(keeping) == ids(0, 3)


async def test_rows_wait_in_the_file_while_the_database_is_away(
    keeping: Keeping, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spill, database = Spill(tmp_path, 10**6), away(keeping)
    ledger = Ledger(keeping, SystemClock(), spill, flush=0.001)
    ledger.add(entry(0))
    await until(lambda: ledger.written == 1)
    database.away = True
    with caplog.at_level(logging.WARNING):
        for n in range(1, 300):
            ledger.add(entry(n))
        await until(lambda: ledger.spilled == 299)
        ledger.add(entry(300))
        await until(lambda: ledger.spilled == 300)
        assert await there(keeping) == ids(0, 1) and spill.nbytes > 0
        database.away = False
        ledger.add(entry(301))
        await until(lambda: spill.nbytes == 0 and ledger.written == 302)
    assert await there(keeping) == ids(0, 302)
    assert ledger.dropped == 0
    said = [record.message for record in caplog.records if record.name == "tailrace.observe.ledger"]
    assert said == [
        "the ledger's database does not answer: rows wait in a file",
        "the ledger's database answers again",
    ]
    await ledger.close()


async def test_what_has_no_room_is_dropped_counted_and_said_once(
    keeping: Keeping, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    line = len(str(entry(0).row()))
    spill, database = Spill(tmp_path, 5 * line), away(keeping)
    database.away = True
    ledger = Ledger(keeping, SystemClock(), spill, flush=0.001, most=10)
    ledger.add(entry(0))
    await until(lambda: ledger.spilled == 1)
    for n in range(1, 40):
        ledger.add(entry(n))
    await until(lambda: ledger.spilled >= 4)
    for n in range(40, 60):
        ledger.add(entry(n))
    registry = CollectorRegistry()
    registry.register(ledger)
    text = generate_latest(registry).decode()
    assert f'tailrace_ledger_rows_total{{result="dropped"}} {float(ledger.dropped)}' in text
    assert "tailrace_ledger_waiting_rows 10.0" in text
    assert [record.message for record in caplog.records].count(
        "rows of the ledger are dropped: neither its database nor its file takes them"
    ) == 1
    database.away = False
    await until(lambda: ledger.written == 60 - ledger.dropped)
    assert len(await there(keeping)) == 60 - ledger.dropped
    await ledger.close()


async def test_a_server_writes_what_one_before_it_left(keeping: Keeping, tmp_path: Path) -> None:
    database = away(keeping)
    database.away = True
    first = Ledger(keeping, SystemClock(), Spill(tmp_path, 10**6), flush=3600)
    for n in range(5):
        first.add(entry(n))
    await first.close()
    file = tmp_path / "ledger.0.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + whole + b'{"entry_id": "x"}\n' + whole[:100])  # twice, of another version, half a line
    database.away = False
    second = Ledger(keeping, SystemClock(), Spill(tmp_path, 10**6), flush=0.001)
    second.start()
    await until(lambda: file.stat().st_size == 0)
    assert await there(keeping) == ids(0, 5)
    await until(lambda: second.dropped == 2)
    await second.close()


async def test_a_database_that_hangs_holds_up_nobody(
    keeping: Keeping, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.observe.ledger.PATIENCE", 0.01)
    ledger = Ledger(keeping, SystemClock(), Spill(tmp_path, 10**6), flush=0.001)
    assert keeping.now is not None
    add, hang = keeping.now.ledger.add, asyncio.Event()

    async def hanging(rows: Sequence[Any]) -> None:
        await hang.wait()

    replaced(keeping, hanging)
    ledger.add(entry(0))
    await until(lambda: ledger.spilled == 1)
    monkeypatch.setattr("tailrace.observe.ledger.PATIENCE", 60)
    replaced(keeping, add)
    await until(lambda: ledger.written == 1)
    assert await there(keeping) == ids(0, 1)
    await ledger.close()


async def test_a_crowded_loop_is_no_database_that_hangs(
    keeping: Keeping, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transaction takes ten turns of the loop, each of them a fifth of the patience."""
    monkeypatch.setattr("tailrace.observe.ledger.PATIENCE", 0.1)
    ledger = Ledger(keeping, SystemClock(), Spill(tmp_path, 10**6), flush=0.001)
    loop = asyncio.get_running_loop()

    def crowd() -> None:
        time.sleep(0.02)
        if not ledger.written + ledger.spilled:
            loop.call_soon(crowd)

    async def turns(rows: Sequence[Any]) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    replaced(keeping, turns)
    ledger.add(entry(0))
    crowd()
    await until(lambda: ledger.written + ledger.spilled)
    assert (ledger.written, ledger.spilled) == (1, 0)
    await ledger.close()


@pytest.mark.parametrize("odd", [{"price": 2**70}, {"model": None}])
async def test_rows_that_the_database_refuses_keep_no_others_from_it(
    keeping: Keeping, odd: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger(keeping, SystemClock())
    for n in range(20):
        ledger.add(replace(entry(n), **odd) if n in (10, 11) else entry(n))
    await until(lambda: ledger.written + ledger.dropped == 20)
    assert (ledger.written, ledger.dropped) == (18, 2)
    assert await there(keeping) == ids(0, 10) + ids(12, 20)
    assert sum("refuses the row" in record.getMessage() for record in caplog.records) == 2
    await ledger.close()


async def test_old_rows_are_forgotten(keeping: Keeping) -> None:
    assert keeping.now is not None
    table, now = keeping.now.ledger, SystemClock().wall()
    await table.add([entry(n).row() for n in range(1500)])  # of the year 1970
    assert await table.forget(1000.0 + 10) == 11  # opened a moment before they ended
    ledger = Ledger(keeping, SystemClock(), retention=86_400.0, flush=0.001)
    ledger.add(entry(int(now)))
    async with asyncio.timeout(120):
        while len(await there(keeping)) > 1:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)
    await ledger.close()
    assert await there(keeping) == [f"r{int(now)}"]


async def test_nothing_is_kept_where_nothing_is_wanted() -> None:
    ledger = Ledger(Keeping(""), SystemClock())
    ledger.add(entry(0))
    ledger.start()
    await ledger.close()
    assert (ledger.written, ledger.dropped) == (0, 0)
