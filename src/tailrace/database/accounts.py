"""Tenants, keys and the audit log as tables. Servers that share a database share them.

A change is made under a lock, from what is there then, and with its row of the log in the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import orjson
from sqlalchemy import Boolean, Column, Float, Integer, RowMapping, Table, delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from tailrace.database.account import AddedKey, AuditRow, Overlay, TenantChange
from tailrace.database.database import Database
from tailrace.database.dialect import insert
from tailrace.database.forgetting import forget
from tailrace.database.schema import Text, metadata

account_version = Table(
    "account_version",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),  # the one row's
    Column("version", Integer, nullable=False),
)
account_tenants = Table(
    "account_tenants",
    metadata,
    Column("name", Text, primary_key=True),
    Column("fields", Text, nullable=False),  # JSON
    Column("deleted", Boolean, nullable=False),
)
account_keys = Table(
    "account_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("hash", Text, nullable=False),
    Column("scopes", Text, nullable=False),  # JSON
    Column("limits", Text, nullable=False),  # JSON
    Column("created", Float, nullable=False),
    Column("expires", Float, nullable=False),
    Column("revoked", Float, nullable=False),
)
audit = Table(
    "audit",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("at", Float, nullable=False, index=True),
    Column("tenant", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("status", Integer, nullable=False),
    Column("error", Text, nullable=False),
    Column("before", Text),  # JSON
    Column("after", Text),  # JSON
    Column("request_id", Text, nullable=False),
    Column("server", Text, nullable=False),
)


class AccountTables:
    """Every call raises Unavailable while the database is away."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def version(self) -> int:
        async with self._database.read() as connection:
            return await _version(connection)

    async def overlay(self) -> Overlay:
        async with self._database.read() as connection:
            return await _overlay(connection)

    async def change(self, edit: Callable[[Overlay], tuple[Overlay, AuditRow]]) -> Overlay:
        """What `edit` makes of what is there. It may raise, and nothing has changed."""
        async with self._database.write() as connection:
            await connection.execute(
                insert(connection, account_version).on_conflict_do_nothing(), {"id": 1, "version": 0}
            )
            await connection.execute(update(account_version).values(version=account_version.c.version + 1))
            before = await _overlay(connection)
            after, row = edit(before)
            await _write(connection, before, after)
            await connection.execute(audit.insert(), _audit_values(row))
            return await _overlay(connection)

    async def note(self, rows: list[AuditRow]) -> None:
        async with self._database.write() as connection:
            await connection.execute(audit.insert(), [_audit_values(row) for row in rows])

    async def audit(self, most: int, before: int = 0) -> list[AuditRow]:
        """The latest first; `before`: those with a lower number."""
        query = select(audit).order_by(audit.c.number.desc()).limit(most)
        if before:
            query = query.where(audit.c.number < before)
        async with self._database.read() as connection:
            return [_audit_row(row) for row in (await connection.execute(query)).mappings()]

    async def forget(self, before: float) -> int:
        """Rows of the log from before, in seconds since the epoch; how many there were."""
        return await forget(self._database, audit.c.number, audit.c.at < before)


async def _version(connection: AsyncConnection) -> int:
    return (await connection.execute(select(account_version.c.version))).scalar() or 0


async def _overlay(connection: AsyncConnection) -> Overlay:
    tenants = (await connection.execute(select(account_tenants).order_by(account_tenants.c.name))).mappings()
    keys = (
        await connection.execute(select(account_keys).order_by(account_keys.c.created, account_keys.c.id))
    ).mappings()
    return Overlay(
        tuple(TenantChange(row["name"], orjson.loads(row["fields"]), row["deleted"]) for row in tenants),
        tuple(_key(row) for row in keys),
        await _version(connection),
    )


async def _write(connection: AsyncConnection, before: Overlay, after: Overlay) -> None:
    """What differs."""
    old, new = ({each.name: each for each in one.tenants} for one in (before, after))
    for name in old.keys() - new.keys():
        await connection.execute(delete(account_tenants).where(account_tenants.c.name == name))
    for name, tenant in new.items():
        if old.get(name) != tenant:
            values = {"fields": _json(tenant.fields), "deleted": tenant.deleted}
            await _put(connection, account_tenants, {"name": name}, values)
    kept, wanted = ({each.id: each for each in one.keys} for one in (before, after))
    for key_id in kept.keys() - wanted.keys():
        await connection.execute(delete(account_keys).where(account_keys.c.id == key_id))
    for key_id, key in wanted.items():
        if kept.get(key_id) != key:
            await _put(connection, account_keys, {"id": key_id}, _key_values(key))


async def _put(connection: AsyncConnection, table: Table, name: dict[str, Any], values: dict[str, Any]) -> None:
    statement = insert(connection, table).values(**name, **values)
    await connection.execute(statement.on_conflict_do_update(index_elements=list(name), set_=values))


def _key(row: RowMapping) -> AddedKey:
    values = {**row, "scopes": tuple(orjson.loads(row["scopes"])), "limits": orjson.loads(row["limits"])}
    return AddedKey(**values)


def _key_values(key: AddedKey) -> dict[str, Any]:
    values = {each.name: getattr(key, each.name) for each in fields(AddedKey) if each.name != "id"}
    return {**values, "scopes": _json(key.scopes), "limits": _json(key.limits)}


def _audit_values(row: AuditRow) -> dict[str, Any]:
    values = {each.name: getattr(row, each.name) for each in fields(AuditRow) if each.name != "number"}
    return {**values, "before": _maybe_json(row.before), "after": _maybe_json(row.after)}


def _audit_row(row: RowMapping) -> AuditRow:
    before, after = (None if text is None else orjson.loads(text) for text in (row["before"], row["after"]))
    return AuditRow(**{**row, "before": before, "after": after})


def _json(value: object) -> str:
    return orjson.dumps(value).decode()


def _maybe_json(value: object) -> str | None:
    return None if value is None else _json(value)
