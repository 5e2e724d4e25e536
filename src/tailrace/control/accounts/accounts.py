"""Tenants and keys that are changed while servers run: made here, kept in the database, taken over from other servers.

A change holds on this server at once, and on the others that share the database within seconds. Without a database it
holds until this server ends, as does its log. Of refused wishes the log keeps so many a minute, and counts the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from tailrace.clock import Clock
from tailrace.control.accounts.edits import Basis
from tailrace.control.settings import Settings
from tailrace.database.account import AuditRow, Overlay
from tailrace.database.keeping import Keeping
from tailrace.database.retention import Retention
from tailrace.errors import ConfigError, InvalidRequest, Unavailable
from tailrace.policy import check_budgets

log = logging.getLogger(__name__)

EVERY = 2.0  # seconds between looks at what other servers have changed
MOST_ROWS = 500  # of the log, read at once
_IN_MEMORY = 1000  # rows of the log, without a database
_REFUSED = 60  # rows of refused wishes in a minute

Edit = Callable[[Basis], Overlay]
Told = Callable[[Basis, Basis], AuditRow]  # from what was and is there to the row of the log


class Accounts:
    """`start()` when `keeping` has started, `close()` in the end. `retention`: seconds until a row of the log is
    forgotten; 0: never."""

    def __init__(
        self, settings: Settings, keeping: Keeping, clock: Clock, server: str, *, retention: float = 0.0
    ) -> None:
        self._settings = settings
        self._keeping = keeping
        self._clock = clock
        self._server = server
        self._retention = Retention(retention, clock)
        self._log: deque[AuditRow] = deque(maxlen=_IN_MEMORY)
        self._number = 0
        self._refused: deque[float] = deque()
        self._left_out = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def kept(self) -> bool:
        """Whether changes outlive this server."""
        return self._keeping.wanted

    def start(self) -> None:
        """Until what is kept has been read, keys that nobody knows get 503, also where none is needed so far."""
        if self.kept:
            self._settings.complete(not self._keeping.may_hold_accounts())
            self._do(self._follow())

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def basis(self, overlay: Overlay | None = None) -> Basis:
        return Basis(self._settings.file, self._settings.overlay if overlay is None else overlay)

    async def change(self, edit: Edit, told: Told) -> Basis:
        """Make a change, with its row in the log; all of it or nothing. Raises what `edit` raises, and Unavailable
        while the database is away."""

        def whole(overlay: Overlay) -> tuple[Overlay, AuditRow]:
            before = self.basis(overlay)
            after = self.basis(edit(before))
            try:
                check_budgets(after.policy, "admin API")
            except ConfigError as error:
                raise InvalidRequest(error.message, param=error.param) from error
            return after.overlay, replace(told(before, after), server=self._server)

        if self.kept:
            overlay = await (await self._keeping.needed()).accounts.change(whole)
        else:
            overlay, row = whole(self._settings.overlay)
            self._remember(row)
        self._take(overlay)
        return self.basis()

    def note(self, row: AuditRow) -> None:
        """Something that was done, or refused, and is no change of accounts: nobody waits for its row."""
        if row.status >= 400 and not self._may_note_refusal():
            return
        row = replace(row, server=self._server)
        log.warning("admin: %s %s by %s/%s: %d %s", row.action, row.target, row.tenant, row.key, row.status, row.error)
        if self.kept:
            self._do(self._write(row))
        else:
            self._remember(row)

    async def audit(self, most: int, before: int = 0) -> list[AuditRow]:
        """The latest first. Raises Unavailable while the database is away."""
        if self.kept:
            return await (await self._keeping.needed()).accounts.audit(most, before)
        rows = [row for row in reversed(self._log) if not before or row.number < before]
        return rows[:most]

    async def look(self) -> None:
        """Take over what other servers have changed. Raises Unavailable."""
        tables = (await self._keeping.needed()).accounts
        if await tables.version() != self._settings.overlay.version:
            self._take(await tables.overlay())

    # --- inside

    def _take(self, overlay: Overlay) -> None:
        """Changes of this server and looks at the database may overtake each other."""
        if not self.kept or overlay.version > self._settings.overlay.version:
            self._settings.lay_over(overlay)

    async def _follow(self) -> None:
        try:
            await self._keeping.opened()
        except ConfigError:  # which has been said
            return
        away = False  # which is said once
        while True:
            try:
                await self.look()
                self._settings.complete(True)
                away = False
                if self._retention.due():
                    await (await self._keeping.needed()).accounts.forget(self._retention.since)
            except Unavailable as error:
                if not away:
                    log.warning("changes of tenants and keys cannot be read: %s", error.__cause__ or error)
                away = True
            await asyncio.sleep(EVERY)

    async def _write(self, row: AuditRow) -> None:
        try:
            await (await self._keeping.needed()).accounts.note([row])
        except Unavailable as error:
            log.error("a row of the audit log is lost: %s", error.__cause__ or error)

    def _remember(self, row: AuditRow) -> None:
        self._number += 1
        self._log.append(replace(row, number=self._number, server=self._server))

    def _may_note_refusal(self) -> bool:
        now = self._clock.now()
        while self._refused and self._refused[0] < now - 60.0:
            self._refused.popleft()
        if len(self._refused) >= _REFUSED:
            self._left_out += 1
            return False
        if self._left_out:
            log.warning("admin: %d refused wishes are not in the audit log: they came too fast", self._left_out)
            self._left_out = 0
        self._refused.append(now)
        return True

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
