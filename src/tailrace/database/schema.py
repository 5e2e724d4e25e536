"""The tables. Each module that owns some declares them on this `metadata`; `HEAD` is the migration that makes them all.

Columns hold plain values that SQLite and PostgreSQL share: times are seconds since the epoch, amounts of money whole
millionths, JSON is text that is never looked into by a query.
"""

from __future__ import annotations

from sqlalchemy import MetaData

HEAD = "0001"

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
