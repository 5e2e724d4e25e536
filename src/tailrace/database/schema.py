"""The tables. Each module that owns some declares them on this `metadata`; `HEAD` is the migration that makes them all.

Columns hold plain values that SQLite and PostgreSQL share: times are seconds since the epoch, amounts of money whole
millionths, JSON is text that is never looked into by a query.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import MetaData, TypeDecorator
from sqlalchemy import Text as AnyText

HEAD = "0001"


class Text(TypeDecorator[str]):
    """PostgreSQL's text holds no NUL, SQLite's does. It is written and looked up as U+FFFD, so that an id with one is
    nobody's in both."""

    impl = AnyText
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        return value.replace("\0", "\ufffd") if value else value

    @property
    def python_type(self) -> type[str]:
        return str


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
