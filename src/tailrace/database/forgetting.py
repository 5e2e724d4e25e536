"""Rows that were kept for long enough go, a bounded number in a transaction: no other write waits for long."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, ColumnElement, delete, select

from tailrace.database.database import Database

AT_ONCE = 1000  # rows


async def forget(
    database: Database, key: Column[Any], old: ColumnElement[bool], *parts: Column[Any], at_once: int = AT_ONCE
) -> int:
    """The rows of `key`'s table that are `old`, with those of other tables whose `parts` columns name their keys. How
    many rows of the first there were. Raises Unavailable."""
    names = select(key).where(old).limit(at_once)
    forgotten = 0
    while True:
        async with database.write() as connection:
            found = (await connection.execute(names)).scalars().all()
            for column in (*parts, key):
                await connection.execute(delete(column.table).where(column.in_(found)))
        forgotten += len(found)
        if len(found) < at_once:
            return forgotten
