"""Bring a database to the tables of this version, inside the caller's transaction.

Alembic does it, and is imported only where there is something to do.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text

from tailrace.database.schema import HEAD
from tailrace.errors import ConfigError

_LOCK = 0x7461696C  # of PostgreSQL, held until the transaction ends: servers that start together take turns


def migrate(connection: Connection) -> None:
    """Raises ConfigError for a database of a later version."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    if _version(connection) == HEAD:
        return
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise ConfigError(
            f"The database is of another version of tailrace ({_version(connection)}): {error}",
            param="data.database",
        ) from error


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
