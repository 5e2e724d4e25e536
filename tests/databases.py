"""Databases of both kinds, new for each test that asks for one: fixtures of all tests, over one PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.postgres_server import PROGRAMS, Postgres, needs_postgres, postgres_server

KINDS = ("sqlite", pytest.param("postgres", marks=needs_postgres))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    assert PROGRAMS is not None
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def names() -> Iterator[str]:
    return (f"kept{number}" for number in count())


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path, names: Iterator[str]) -> str:
    """Of a database with nothing in it."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'kept.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.url(next(names))
