"""A database that is opened beside what else goes on: serving does not wait for it, nor ends when it is away.

What knows SQL is imported in a thread once this starts, which takes longer than the rest of a start: so nothing that a
server needs before may import it.
"""

from __future__ import annotations

import asyncio
import logging
from importlib import import_module
from typing import TYPE_CHECKING

from tailrace.database.peek import may_hold_accounts
from tailrace.errors import ConfigError, Domain, ErrorKind, Unavailable

if TYPE_CHECKING:
    from tailrace.database.kept import Kept

log = logging.getLogger(__name__)

_AGAIN = 1.0  # seconds between tries to open it
_PATIENCE = 5.0  # seconds that who needs it waits while it is being opened


class Keeping:
    """`url` as `Database` takes it; empty: nothing is kept. `start()` with a running loop, `close()` in the end."""

    def __init__(self, url: str, *, patience: float = _PATIENCE) -> None:
        self._url = url
        self._patience = patience
        self._task: asyncio.Task[Kept] | None = None
        self._kept: Kept | None = None
        self._caught_up = asyncio.Event()

    def start(self) -> None:
        if self._url and self._task is None:
            self._task = asyncio.create_task(self._open())

    @property
    def wanted(self) -> bool:
        """Whether anything is to be kept at all."""
        return bool(self._url)

    def may_hold_accounts(self) -> bool:
        """Whether tenants or keys may be in it, as far as that can be told without opening it."""
        return self.wanted and may_hold_accounts(self._url)

    @property
    def now(self) -> Kept | None:
        """None until it is open. One that is open may be away all the same: its calls say so."""
        return self._kept

    async def opened(self) -> Kept:
        """When it is, however long that takes. Raises ConfigError where it never will be."""
        assert self._task is not None, "it is not kept, or not started"
        return await asyncio.shield(self._task)

    async def needed(self) -> Kept:
        """For a request that cannot do without. Raises Unavailable when nothing is kept, or it is not open in time."""
        if self._kept is not None:
            return self._kept
        if self._task is None:
            raise Unavailable(
                "This server keeps nothing (--database none)", code="nothing_kept", kind=ErrorKind.MISSING
            )
        try:
            async with asyncio.timeout(self._patience):
                return await self.opened()
        except (TimeoutError, ConfigError):
            raise Unavailable(
                "The database does not answer", code="database_unavailable", retry_after=_AGAIN,
                domain=Domain.EXTERNAL, kind=ErrorKind.UPSTREAM,
            ) from None  # fmt: skip

    def has_caught_up(self) -> None:
        """What earlier servers set aside for the ledger while it was away is in it now."""
        self._caught_up.set()

    @property
    def ready(self) -> bool:
        """Whether `caught_up` has not to wait."""
        return self._kept is not None and self._caught_up.is_set()

    async def caught_up(self) -> Kept:
        """As `needed`, once that has happened."""
        kept = await self.needed()
        try:
            async with asyncio.timeout(self._patience):
                await self._caught_up.wait()
        except TimeoutError:
            raise Unavailable("The database is catching up", code="database_unavailable", retry_after=_AGAIN) from None
        return kept

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._kept is not None:
            await self._kept.close()

    async def _open(self) -> Kept:
        for module in ("database", "kept"):
            await asyncio.to_thread(import_module, f"tailrace.database.{module}")
        from tailrace.database.database import Database  # noqa: PLC0415
        from tailrace.database.kept import Kept  # noqa: PLC0415

        database = Database(self._url)
        said = False
        while True:
            try:
                await database.open()
                break
            except Unavailable as error:
                if not said:
                    log.warning("the database %s does not answer yet: %s", database, error.__cause__)
                said = True
                await asyncio.sleep(_AGAIN)
            except ConfigError as error:
                log.critical("nothing is kept: %s", error)
                raise
        self._kept = Kept(database)
        return self._kept
