"""Kept responses in the database, so that they outlive the process.

While the database answers, an answer waits for its own commit, which is one with those that came meanwhile. While it
does not, responses wait in a bounded memory and are written later: no answer that has been made fails for it. What
waits can be read from here; anything else cannot be read meanwhile, and says so (503).
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from contextlib import suppress
from itertools import islice

from tailrace.clock import Clock
from tailrace.control.responses import CountedResponses
from tailrace.database.keeping import Keeping
from tailrace.database.response import KeptResponse
from tailrace.database.retention import Retention
from tailrace.errors import Unavailable
from tailrace.frozen import frozen

log = logging.getLogger(__name__)

_PATIENCE = 1.0  # seconds that an answer waits for its commit
_AGAIN = 1.0  # seconds between tries while the database is away
_LAST = 5.0  # seconds at the end for what is not written yet
_AT_ONCE = 100  # responses in one transaction


@frozen
class _Waiting:
    tenant: str
    kept: KeptResponse
    created: float
    written: asyncio.Event


class DurableResponses(CountedResponses):
    """`most`: bytes that may wait to be written, and that a chain may have. `retention`: seconds until a response is
    forgotten; 0: never."""

    def __init__(self, keeping: Keeping, clock: Clock, *, most: int, retention: float) -> None:
        self._keeping = keeping
        self._clock = clock
        self._most = most
        self._retention = Retention(retention, clock)
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()
        self._size = 0
        self._away = False
        self._writer: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    @property
    def unwritten(self) -> int:
        return len(self._waiting)

    async def put(self, tenant: str, kept: KeptResponse) -> None:
        entry = _Waiting(tenant, kept, self._clock.wall(), asyncio.Event())
        self._waiting[kept.id] = entry
        self._size += kept.size
        while self._size > self._most:
            self._lose()
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
        if not self._away and kept.id in self._waiting:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE):
                    await entry.written.wait()

    async def get(self, tenant: str, response_id: str) -> KeptResponse | None:
        """Raises Unavailable."""
        found = self._unwritten(tenant, response_id)
        if found is not None:
            return found
        return await (await self._keeping.needed()).responses.get(tenant, response_id, self._retention.since)

    async def chain(self, tenant: str, response_id: str) -> list[KeptResponse] | None:
        """Raises Unavailable, InvalidRequest for one that is too long."""
        found: list[KeptResponse] = []
        wanted: str | None = response_id
        while wanted is not None and (kept := self._unwritten(tenant, wanted)) is not None:
            found.append(kept)
            wanted = kept.previous
        if wanted is not None:
            store = (await self._keeping.needed()).responses
            found += await store.chain(tenant, wanted, self._retention.since, self._most)
        return found[::-1] if found and found[-1].previous is None else None

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Raises Unavailable; it may be there still then."""
        store = (await self._keeping.needed()).responses
        async with self._writing:  # or a transaction that is on its way would bring it back
            waited = self._unwritten(tenant, response_id) is not None
            if waited:
                self._remove(response_id)
            return await store.delete(tenant, response_id) or waited

    async def close(self) -> None:
        if self._writer is None:
            return
        if not self._away:
            await asyncio.wait((self._writer,), timeout=_LAST)
        self._writer.cancel()
        await asyncio.gather(self._writer, return_exceptions=True)
        self.lost += len(self._waiting)
        if self._waiting:
            log.error("%d responses are lost: the database did not answer", len(self._waiting))

    def _unwritten(self, tenant: str, response_id: str) -> KeptResponse | None:
        entry = self._waiting.get(response_id)
        return entry.kept if entry is not None and entry.tenant == tenant else None

    def _remove(self, response_id: str) -> None:
        entry = self._waiting.pop(response_id)
        self._size -= entry.kept.size
        entry.written.set()

    def _lose(self) -> None:
        """The oldest that waits."""
        if not self.lost:
            log.error("responses are lost: more wait for the database than may (--response-memory)")
        self.lost += 1
        self._remove(next(iter(self._waiting)))

    async def _write(self) -> None:
        """All that waits. Ends when nothing does."""
        while self._waiting:
            try:
                store = (await self._keeping.needed()).responses
                async with self._writing:
                    batch = list(islice(self._waiting.values(), _AT_ONCE))
                    await store.put((each.tenant, each.kept, each.created) for each in batch)
                    for each in batch:
                        if self._waiting.get(each.kept.id) is each:
                            self._remove(each.kept.id)
                self._away = False
                await self._sweep()
            except Unavailable:
                self._away = True
                await asyncio.sleep(_AGAIN)

    async def _sweep(self) -> None:
        if self._retention.due():
            await (await self._keeping.needed()).responses.forget(self._retention.since)
