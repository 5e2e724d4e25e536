"""What SQLite and PostgreSQL both have, and SQLAlchemy has for each of them alone."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection


def insert(connection: AsyncConnection, table: Table) -> Any:
    """An INSERT that takes `on_conflict_do_nothing` and `on_conflict_do_update`."""
    return (sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert)(table)
