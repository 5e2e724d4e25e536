"""The way of entries into the database: beside the serving, which never waits for it.

    add -> memory (bounded) -> database, all that came within FLUSH in one transaction
                \\-> file (bounded) -> database, once it answers again

While the database answers, an entry is in it after FLUSH and the time of its commit; while it does not, in the file
after as much. What neither takes waits in memory, and what has no room there is dropped, counted and said. Rows are
written again where it is not known whether they are there: their ids are their own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from contextvars import Context
from itertools import islice
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tailrace.clock import Clock
from tailrace.database.keeping import Keeping
from tailrace.database.retention import Retention
from tailrace.errors import Unavailable
from tailrace.observe.entry import Entry, is_row
from tailrace.observe.spill import Spill

log = logging.getLogger(__name__)

FLUSH = 0.1  # seconds in which entries gather for one transaction
PATIENCE = 1.0  # seconds that a transaction may take before its rows are set aside
_TURNS = 20  # of the event loop at least, within them
_AGAIN = 1.0  # seconds between tries while the database is away
_AT_ONCE = 200  # rows of a transaction
_MOST = 8192  # entries in memory, about 4 KiB each
_LAST = 5.0  # seconds at the end for what is not written yet
_TRIES = 5  # at the end, of rows that no file takes

Row = dict[str, Any]


class Ledger(Collector):
    """On one event loop. `spill` None: no file. `retention`: seconds until a row is forgotten; 0: never."""

    def __init__(
        self,
        keeping: Keeping,
        clock: Clock,
        spill: Spill | None = None,
        *,
        retention: float = 0.0,
        flush: float = FLUSH,
        most: int = _MOST,
    ) -> None:
        self.written = self.spilled = self.dropped = 0  # rows since the start
        self._keeping = keeping
        self._clock = clock
        self._spill = spill
        self._retention = Retention(retention, clock)
        self._flush = flush
        self._most = most
        self._waiting: deque[Entry] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._away = False
        self._again = 0.0  # when the database is tried next, where it is away
        self._losing = False

    def start(self) -> None:
        """Write what an earlier server has left. Whatever is added starts it too."""
        if self._keeping.wanted and (self._writer is None or self._writer.done()):
            self._writer = asyncio.create_task(self._write(), context=Context())  # of no request

    def add(self, entry: Entry) -> None:
        """Takes microseconds."""
        if not self._keeping.wanted:
            return
        if len(self._waiting) >= self._most:
            self._drop(1)
            return
        self._waiting.append(entry)
        self.start()

    async def close(self) -> None:
        """Write what waits, or set it aside, in bounded time. Nothing is added any more."""
        if self._writer is None:
            return
        self._writer.cancel()
        await asyncio.gather(self._writer, return_exceptions=True)
        until = self._clock.now() + _LAST
        for _ in range(_TRIES if self._spill is None else 1):
            if self._away or await self._put_waiting(until):
                break
            await asyncio.sleep(FLUSH)
        if self._spill is not None:
            await self._set_aside()
            await asyncio.to_thread(self._spill.close)
        if self._waiting:
            self._drop(len(self._waiting))
            log.error("the ledger lost its last %d rows: neither database nor file took them", len(self._waiting))

    def collect(self) -> Iterator[Metric]:
        rows = CounterMetricFamily(
            "tailrace_ledger_rows", "Rows of the ledger, by what became of them", labels=("result",)
        )
        for result in ("written", "spilled", "dropped"):
            rows.add_metric((result,), getattr(self, result))
        yield rows
        yield GaugeMetricFamily("tailrace_ledger_waiting_rows", "Rows that wait in memory", len(self._waiting))
        size = 0 if self._spill is None else self._spill.nbytes
        yield GaugeMetricFamily("tailrace_ledger_spill_bytes", "Rows that wait in the file", size)

    async def _write(self) -> None:
        """All that waits, in memory or in the file. Ends when nothing does."""
        if self._spill is not None:
            await asyncio.to_thread(self._spill.open)
        self._tell()
        while self._waiting or (self._spill is not None and self._spill.nbytes):
            await asyncio.sleep(self._flush)
            if self._away and self._clock.now() < self._again:
                await self._set_aside()
            elif await self._put_waiting() and await self._put_spilled():
                self._answers()
                self._tell()
                await self._sweep()
            else:
                self._is_away()
                await self._set_aside()

    def _tell(self) -> None:
        """Those who count on what earlier servers have left."""
        if self._spill is None or not self._spill.nbytes:
            self._keeping.has_caught_up()

    async def _put_waiting(self, until: float = float("inf")) -> bool:
        """Whether nothing waits in memory any more."""
        while self._waiting and self._clock.now() < until:
            batch = list(islice(self._waiting, _AT_ONCE))
            if not await self._put([entry.row() for entry in batch]):
                return False
            for _ in batch:
                self._waiting.popleft()
        return True

    async def _put_spilled(self) -> bool:
        """A transaction of what the file holds; whether the database took it."""
        if self._spill is None or not self._spill.nbytes:
            return True
        read = await asyncio.to_thread(self._spill.read, _AT_ONCE)
        rows = [row for row in read if is_row(row)]
        if rows and not await self._put(rows):
            return False
        self._drop(len(read) - len(rows) + self._torn())
        await asyncio.to_thread(self._spill.forget)
        return True

    async def _put(self, rows: list[Row]) -> bool:
        """Whether the database took them, in time: a transaction takes several turns of the loop, so a crowded loop
        gives it as many. One that hangs is left to its own end, which may take longer than its cancelling."""
        task = asyncio.create_task(self._insert(rows))
        try:
            for _ in range(_TURNS):
                done, _ = await asyncio.wait((task,), timeout=PATIENCE / _TURNS)
                if done:
                    break
        finally:
            task.cancel()
        refused = task.result() if done else None
        if refused is None or refused == len(rows) > 1:  # all of several: that is no fault of the rows
            return False
        self.written += len(rows) - refused
        self._drop(refused)
        return True

    async def _insert(self, rows: list[Row]) -> int | None:
        """How many of them the database refuses, which do not keep it from the others; None: it does not answer."""
        try:
            await (await self._keeping.needed()).ledger.add(rows)
        except Unavailable:
            return None
        except Exception:
            if len(rows) == 1:
                if not self._away:
                    log.exception("the database refuses the row %s of the ledger", rows[0].get("entry_id"))
                return 1
            refused = 0
            for half in rows[: len(rows) // 2], rows[len(rows) // 2 :]:
                more = await self._insert(half)
                if more is None:
                    return None
                refused += more
            return refused
        return 0

    async def _set_aside(self) -> None:
        """Put what waits into the file. What does not fit goes on waiting."""
        if self._spill is None or not self._waiting:
            return
        batch = list(self._waiting)
        kept = await asyncio.to_thread(lambda: self._append([entry.row() for entry in batch]))
        for _ in range(kept):
            self._waiting.popleft()
        self.spilled += kept

    def _append(self, rows: list[Row]) -> int:
        assert self._spill is not None
        return self._spill.append(rows)

    def _torn(self) -> int:
        """Lines of the file that could not be read since this was asked last."""
        assert self._spill is not None
        torn, self._spill.torn = self._spill.torn, 0
        return torn

    def _drop(self, rows: int) -> None:
        if not rows:
            return
        if not self._losing:
            log.error("rows of the ledger are dropped: neither its database nor its file takes them")
        self._losing = True
        self.dropped += rows

    def _is_away(self) -> None:
        if not self._away:
            where = "memory" if self._spill is None else "a file"
            log.warning("the ledger's database does not answer: rows wait in %s", where)
        self._away, self._again = True, self._clock.now() + _AGAIN

    def _answers(self) -> None:
        if self._away:
            log.warning("the ledger's database answers again")
        self._away = self._losing = False

    async def _sweep(self) -> None:
        kept = self._keeping.now
        if kept is not None and self._retention.due():
            await kept.ledger.forget(self._retention.since)
            await kept.feedback.forget(self._retention.since)
