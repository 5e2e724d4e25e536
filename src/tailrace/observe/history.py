"""Ended requests, for their tenants: the latest from memory, others from the database, and what was said of each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from tailrace.clock import Clock
from tailrace.database.keeping import Keeping
from tailrace.errors import Unavailable
from tailrace.observe.entry import Entry
from tailrace.observe.record import Records, record

Record = dict[str, Any]
_LONGEST = 128  # characters of an id
_PATIENCE = 1.0  # seconds that a record waits for what was said of it


class History:
    """Another tenant's requests are as those that never were. Calls raise Unavailable where the database is needed and
    away."""

    def __init__(self, records: Records, keeping: Keeping, clock: Clock) -> None:
        self._records = records
        self._keeping = keeping
        self._clock = clock

    async def find(self, tenant: str, name: str) -> Record | None:
        """By the id of the request, of its answer or of its entry; the newest of an id that was repeated."""
        entry = await self._entry(tenant, name)
        return None if entry is None else (await self._shown([entry]))[0]

    async def latest(self, tenant: str, count: int, before: str = "") -> list[Record]:
        """The newest first; those older than the entry `before` where one is named."""
        found = {entry.entry_id: entry for entry in self._records.of(tenant) if not before or entry.entry_id < before}
        if self._keeping.wanted:
            rows = await (await self._keeping.needed()).ledger.latest(tenant, count, before)
            found.update({row["entry_id"]: Entry.of_row(dict(row)) for row in rows})
        return await self._shown([found[name] for name in sorted(found, reverse=True)[:count]])

    async def comment(self, tenant: str, name: str, said: dict[str, Any]) -> Record | None:
        """Keep what its tenant says of a request; its record then, None where there is no such request."""
        kept = await self._keeping.needed()
        entry = await self._entry(tenant, name)
        if entry is None:
            return None
        task = said["task"] or entry.task
        row = {"entry_id": entry.entry_id, "tenant": tenant, "at": self._clock.wall(), **said, "task": task}
        await kept.feedback.put(row)
        return (await self._shown([entry]))[0]

    async def _entry(self, tenant: str, name: str) -> Entry | None:
        entry = self._records.find(name, tenant)
        if entry is None and self._keeping.wanted and _can_be(name):
            row = await (await self._keeping.needed()).ledger.find(tenant, name)
            entry = None if row is None else Entry.of_row(dict(row))
        return entry

    async def _shown(self, entries: Sequence[Entry]) -> list[Record]:
        said = await self._said(entries)
        return [{**record(entry), "feedback": _plain(said.get(entry.entry_id))} for entry in entries]

    async def _said(self, entries: Sequence[Entry]) -> Mapping[str, Any]:
        """Nothing while the database is away: what is known is shown all the same."""
        kept = self._keeping.now
        if kept is not None:
            with suppress(Unavailable, TimeoutError):
                async with asyncio.timeout(_PATIENCE):
                    return await kept.feedback.of([entry.entry_id for entry in entries])
        return {}


def _can_be(name: str) -> bool:
    """Whether it can be an id at all; other texts are nothing that every database takes."""
    return len(name) <= _LONGEST and name.isascii() and name.isprintable()


def _plain(row: Any) -> Record | None:
    return None if row is None else {name: row[name] for name in ("success", "score", "task", "comment", "at")}
