"""A look into the database before it is opened, without what takes long to import."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

_SQLITE = "sqlite:///"


def may_hold_accounts(url: str) -> bool:
    """Whether tenants or keys may be kept there. True where that cannot be told at once."""
    if not url.startswith(_SQLITE):
        return True
    path = Path(url.removeprefix(_SQLITE))
    if not path.exists():
        return False
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0.2)) as connection:
            return connection.execute("SELECT 1 FROM account_version").fetchone() is not None
    except sqlite3.OperationalError as error:
        return "no such table" not in str(error)
    except sqlite3.Error:
        return True
