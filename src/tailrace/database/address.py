"""Where a database is, checked at once: before what knows SQL is imported, which takes a third of a second."""

from __future__ import annotations

from importlib.util import find_spec

from tailrace.errors import ConfigError

_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")


def check_address(url: str) -> None:
    """Raises ConfigError for what is none, and where the driver is not installed."""
    if url.startswith(_SQLITE):
        return
    if not url.startswith(_POSTGRES):
        raise wrong_address()
    if find_spec("asyncpg") is None:
        raise ConfigError("PostgreSQL needs a driver: pip install 'tailrace[postgres]'", param="data.database")


def wrong_address() -> ConfigError:
    """Without the address, which may hold a password."""
    return ConfigError(
        "data.database: accepted is sqlite:///PATH, postgresql://USER:PASSWORD@HOST/NAME or none", param="data.database"
    )
