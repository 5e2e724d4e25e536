"""Files by their ids, read by their tenant alone. Contents are rows of a bounded size, so that every server of a
database reads them, and nobody holds a whole file in memory. A file is there once all of it is."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Index,
    LargeBinary,
    PrimaryKeyConstraint,
    Row,
    Table,
    delete,
    select,
    tuple_,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from tailrace.database.database import Database
from tailrace.database.dialect import insert
from tailrace.database.file import StoredFile
from tailrace.database.forgetting import forget
from tailrace.database.schema import Text, metadata

CHUNK = 256 * 1024  # bytes in one row, of all but a file's last
_AT_ONCE = 10  # files that one transaction forgets: each has many rows

files = Table(
    "files",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("created", Float, nullable=False),
    Index(None, "tenant", "created"),
)

chunks = Table(
    "file_chunks",
    metadata,
    Column("file", Text, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
    PrimaryKeyConstraint("file", "number"),
)


class Files:
    """Every call raises Unavailable while the database is away."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def write(self, file_id: str, pieces: AsyncIterable[bytes]) -> int:
        """Its content, which nobody sees until `add`; how many bytes. The same again changes nothing."""
        size = number = 0
        async for data in _cut(pieces):
            row = {"file": file_id, "number": number, "data": data}
            async with self._database.write() as connection:
                await connection.execute(insert(connection, chunks).on_conflict_do_nothing(), row)
            size, number = size + len(data), number + 1
        return size

    async def add(self, file: StoredFile) -> None:
        async with self._database.write() as connection:
            await add_files(connection, [file])

    async def find(self, tenant: str, file_id: str) -> StoredFile | None:
        query = select(files).where(files.c.id == file_id, files.c.tenant == tenant)
        async with self._database.read() as connection:
            row = (await connection.execute(query)).first()
        return None if row is None else _file(row)

    async def page(
        self, tenant: str, purpose: str | None, after: str | None, most: int, *, newest_first: bool
    ) -> list[StoredFile] | None:
        """A tenant's, behind `after`. None where that is not there."""
        query = select(files).where(files.c.tenant == tenant)
        place = tuple_(files.c.created, files.c.id)
        async with self._database.read() as connection:
            if after is not None:
                row = (await connection.execute(query.where(files.c.id == after))).first()
                if row is None:
                    return None
                here = tuple_(row.created, row.id)
                query = query.where(place < here if newest_first else place > here)
            if purpose is not None:
                query = query.where(files.c.purpose == purpose)
            order = (files.c.created, files.c.id)
            query = query.order_by(*[each.desc() if newest_first else each for each in order]).limit(most)
            return [_file(row) for row in await connection.execute(query)]

    async def content(self, file_id: str) -> AsyncIterator[bytes]:
        """Of a file that is there, piece by piece."""
        number = 0
        while True:
            query = select(chunks.c.data).where(chunks.c.file == file_id, chunks.c.number == number)
            async with self._database.read() as connection:
                data = (await connection.execute(query)).scalar()
            if data is None:
                return
            yield bytes(data)
            number += 1

    async def delete(self, tenant: str, file_id: str) -> bool:
        """Whether it was there."""
        async with self._database.write() as connection:
            done = await connection.execute(delete(files).where(files.c.id == file_id, files.c.tenant == tenant))
            if done.rowcount:
                await connection.execute(delete(chunks).where(chunks.c.file == file_id))
        return done.rowcount > 0

    async def forget(self, before: float) -> None:
        """Those that were made before."""
        await forget(self._database, files.c.id, files.c.created < before, chunks.c.file, at_once=_AT_ONCE)

    async def drop(self, file_id: str) -> None:
        """What was written of a file that is not to be."""
        async with self._database.write() as connection:
            await connection.execute(delete(chunks).where(chunks.c.file == file_id))


async def add_files(connection: AsyncConnection, made: list[StoredFile]) -> None:
    """They are there, within the caller's transaction."""
    rows = [{name: getattr(file, name) for name in files.c.keys()} for file in made]  # noqa: SIM118
    if rows:
        await connection.execute(insert(connection, files).on_conflict_do_nothing(), rows)


async def _cut(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """In pieces of CHUNK bytes."""
    left = bytearray()
    async for piece in pieces:
        left += piece
        while len(left) >= CHUNK:
            yield bytes(left[:CHUNK])
            del left[:CHUNK]
    if left:
        yield bytes(left)


def _file(row: Row[tuple[object, ...]]) -> StoredFile:
    return StoredFile(row.id, row.tenant, row.purpose, row.name, row.size, row.created)
