"""The database: where it is, its connections, its transactions.

SQLite (in WAL mode) or PostgreSQL, by URL; both are used through SQLAlchemy's core, without its sessions. Whatever
says that it does not answer becomes Unavailable, so that callers know one error; what it refuses stays as it is.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, event, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from tailrace.database.address import check_address, wrong_address
from tailrace.database.migrate import migrate
from tailrace.errors import Domain, ErrorKind, Unavailable

TIMEOUT = 10.0  # seconds that a transaction may take, waiting for a connection and for others' locks included
_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}
_WRITES = "tailrace_writes"
_TURN = 0.02  # seconds

log = logging.getLogger(__name__)


class Database:
    """`open()` before anything else, `close()` in the end. One for a process and its event loop.

    `url`: `sqlite:///PATH` or `postgresql://USER:PASSWORD@HOST/NAME`. Raises ConfigError for another, and where the
    driver is not installed.
    """

    def __init__(self, url: str, *, timeout: float = TIMEOUT) -> None:
        self._url = database_url(url)
        self._timeout = timeout
        self._engine = create_async_engine(self._url, **_options(self._url, timeout))
        self._writing = asyncio.Lock()  # SQLite lets one write at a time: who waits here holds up nobody else
        self._file: tuple[int, int] | None = None  # of SQLite, once it is open
        self._gone = False
        if self.sqlite:
            event.listen(self._engine.sync_engine, "connect", _prepare)
            event.listen(self._engine.sync_engine, "begin", _begin)

    @property
    def sqlite(self) -> bool:
        return self._url.get_backend_name() == "sqlite"

    def exists(self) -> bool:
        """Of SQLite: whether there is such a file."""
        return Path(self._url.database or "").is_file()

    def __str__(self) -> str:
        """Without the password."""
        return self._url.set(drivername=self._url.get_backend_name()).render_as_string(hide_password=True)

    async def open(self) -> None:
        """Make or bring up to date what is there. Several servers may do so at once. Raises Unavailable while it does
        not answer, ConfigError for a database of a later version."""
        if self.sqlite and self._url.database:
            Path(self._url.database).parent.mkdir(parents=True, exist_ok=True)
        until = asyncio.get_running_loop().time() + self._timeout
        while not await self._migrated(until):  # noqa: ASYNC110 - the other server tells nobody
            await asyncio.sleep(_TURN)
        self._file = self._found()

    async def _migrated(self, until: float) -> bool:
        """False where another server makes the same new file of SQLite, which does not wait for that to be over."""
        try:
            async with self.write() as connection:
                await connection.run_sync(migrate)
        except Unavailable as error:
            locked = self.sqlite and "database is locked" in str(error.__cause__)
            if not locked or asyncio.get_running_loop().time() >= until:
                raise
            return False
        return True

    async def close(self) -> None:
        await self._engine.dispose()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A consistent view. Raises Unavailable."""
        async with _answering(self._timeout), self._engine.begin() as connection:
            yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """One transaction, committed at the end of the block and undone by whatever it raises. Raises Unavailable; what
        was written may be there all the same where the answer to the commit was lost, so writes are made repeatable."""
        async with _answering(self._timeout):
            if not self.sqlite:
                async with self._engine.begin() as connection:
                    yield connection
                return
            self._check()
            async with self._writing, self._engine.connect() as connection:
                await connection.execution_options(**{_WRITES: True})
                async with connection.begin():
                    yield connection

    def _check(self) -> None:
        """SQLite goes on writing into a file that was deleted or replaced, where nobody would find it again."""
        if self._file is None or self._file == self._found():
            return
        if not self._gone:
            log.error("%s was deleted or replaced while it was open: nothing is kept in it until a restart", self)
        self._gone = True
        raise OSError("the database's file is not in its place")

    def _found(self) -> tuple[int, int] | None:
        """Which file it is, of SQLite; (0, 0) where there is none."""
        if not self.sqlite or not self._url.database:
            return None
        try:
            found = os.stat(self._url.database)
        except OSError:
            return 0, 0
        return found.st_dev, found.st_ino


def database_url(text: str) -> URL:
    """With the driver in it. Raises ConfigError."""
    check_address(text)
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # the latter of a port that is no number
        raise wrong_address() from None
    return url.set(drivername=_DRIVERS[url.get_backend_name()])


@asynccontextmanager
async def _answering(seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except (IntegrityError, DataError):
        raise
    except (DBAPIError, PoolTimeout, OSError, TimeoutError) as error:
        if _refused(error):
            raise
        raise Unavailable(
            "The database does not answer",
            code="database_unavailable",
            retry_after=1.0,
            domain=Domain.EXTERNAL,
            kind=ErrorKind.UPSTREAM,
        ) from error


def _refused(error: Exception) -> bool:
    """Whether it answers, and does not take a value (SQLSTATE's class 22), or its driver does not. SQLAlchemy has no
    class of its own for asyncpg's."""
    cause = getattr(error, "orig", None)
    state = getattr(cause, "sqlstate", None) or ""
    return state.startswith("22") or isinstance(getattr(cause, "__cause__", None), ValueError)


def _options(url: URL, timeout: float) -> dict[str, Any]:
    if url.get_backend_name() == "sqlite":
        return {"connect_args": {"timeout": timeout}}
    return {"pool_pre_ping": True, "pool_timeout": timeout, "connect_args": {"timeout": timeout}}


def _prepare(connection: Any, record: Any) -> None:
    """Transactions are begun by `_begin` and not by the driver, which would begin them too late."""
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Connection) -> None:
    """A writer takes its lock at once: one that began by reading could find it taken, and would have to start again."""
    writes = connection.get_execution_options().get(_WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
