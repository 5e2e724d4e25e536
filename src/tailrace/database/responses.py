"""Responses that were asked to be kept, by the id that each has for ever; read by their tenant alone."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Column, ColumnElement, Float, Row, Table, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from tailrace.database.database import Database
from tailrace.database.dialect import insert
from tailrace.database.forgetting import forget
from tailrace.database.response import KeptResponse
from tailrace.database.schema import Text, metadata
from tailrace.errors import InvalidRequest

responses = Table(
    "responses",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("previous", Text),
    Column("body", Text, nullable=False),
    Column("input", Text, nullable=False),
    Column("created", Float, nullable=False, index=True),
)


class Responses:
    """Every call raises Unavailable while the database is away. Times are seconds since the epoch."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, kept: Iterable[tuple[str, KeptResponse, float]]) -> None:
        """(tenant, response, when it was made) each, all or none. Those that are there already stay as they are."""
        async with self._database.write() as connection:
            await add_responses(connection, kept)

    async def get(self, tenant: str, response_id: str, since: float) -> KeptResponse | None:
        """None also for one that was made before `since`."""
        query = select(responses).where(*_of(tenant, response_id), responses.c.created >= since)
        async with self._database.read() as connection:
            row = (await connection.execute(query)).first()
        return None if row is None else _kept(row)

    async def chain(self, tenant: str, response_id: str, since: float, most: int) -> list[KeptResponse]:
        """The response and those before it that are there, newest first. Raises InvalidRequest where they are more than
        `most` characters together, before any is read."""
        mine = (responses.c.tenant == tenant, responses.c.created >= since)
        one = select(responses.c.id, responses.c.previous).where(responses.c.id == response_id, *mine)
        found = one.cte("found", recursive=True)
        before = select(responses.c.id, responses.c.previous).join(found, responses.c.id == found.c.previous)
        found = found.union(before.where(*mine))
        of_all = responses.join(found, responses.c.id == found.c.id)
        sizes = func.sum(func.length(responses.c.body) + func.length(responses.c.input))
        async with self._database.read() as connection:
            size = (await connection.execute(select(sizes).select_from(of_all))).scalar() or 0
            if size > most:
                raise InvalidRequest(
                    f"The responses before it have {size} characters; at most {most} are gone on from",
                    param="previous_response_id",
                )
            rows = {row.id: _kept(row) for row in await connection.execute(select(responses).select_from(of_all))}
        chain: list[KeptResponse] = []
        wanted: str | None = response_id
        while wanted in rows:
            chain.append(rows.pop(wanted))
            wanted = chain[-1].previous
        return chain

    async def change(self, tenant: str, response_id: str, body: bytes) -> bool:
        """Another body for one that is there; whether it is."""
        async with self._database.write() as connection:
            done = await connection.execute(
                update(responses).where(*_of(tenant, response_id)).values(body=body.decode())
            )
        return done.rowcount > 0

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Whether it was there."""
        async with self._database.write() as connection:
            done = await connection.execute(delete(responses).where(*_of(tenant, response_id)))
        return done.rowcount > 0

    async def forget(self, before: float) -> int:
        """Those that were made before; how many there were."""
        return await forget(self._database, responses.c.id, responses.c.created < before)


async def add_responses(connection: AsyncConnection, kept: Iterable[tuple[str, KeptResponse, float]]) -> None:
    """As `Responses.put`, within the caller's transaction."""
    rows = [
        {
            "id": each.id,
            "tenant": tenant,
            "previous": each.previous,
            "body": each.body.decode(),
            "input": each.items.decode(),
            "created": created,
        }
        for tenant, each, created in kept
    ]
    await connection.execute(insert(connection, responses).on_conflict_do_nothing(), rows)


def _of(tenant: str, response_id: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return responses.c.tenant == tenant, responses.c.id == response_id


def _kept(row: Row[tuple[object, ...]]) -> KeptResponse:
    return KeptResponse(row.id, row.body.encode(), row.input.encode(), row.previous)
