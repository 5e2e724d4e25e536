"""The database on both kinds: its tables, its transactions, several servers on one, and one that is away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import IntegrityError

from tailrace.config import DataConfig, database_of
from tailrace.database import kept, migrate
from tailrace.database.database import Database, database_url
from tailrace.database.schema import HEAD, metadata
from tailrace.errors import ConfigError, Unavailable
from tests.postgres_server import Postgres, needs_postgres


async def test_migrations_make_the_tables_that_the_code_declares(url: str) -> None:
    assert kept.Kept  # its import declares every part's tables
    database = Database(url)
    await database.open()
    await database.open()  # nothing is left to do

    def differences(connection: Connection) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(connection), metadata))

    async with database.read() as connection:
        assert await connection.run_sync(differences) == []
        assert await connection.run_sync(lambda c: inspect(c).has_table("alembic_version"))
    await database.close()


def test_the_newest_migration_is_the_one_that_the_code_expects() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrate.__file__).parent / "migrations"))
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


async def test_several_servers_open_a_new_database_at_once(url: str) -> None:
    servers = [Database(url) for _ in range(4)]
    await asyncio.gather(*(server.open() for server in servers))
    await asyncio.gather(*(server.close() for server in servers))


async def test_a_transaction_is_whole_or_not_there(url: str) -> None:
    database = Database(url)
    async with database.write() as connection:
        await connection.execute(text("CREATE TABLE t (n INTEGER PRIMARY KEY)"))
    with pytest.raises(ZeroDivisionError):
        async with database.write() as connection:
            await connection.execute(text("INSERT INTO t VALUES (1)"))
            1 / 0  # noqa: B018
    with pytest.raises(IntegrityError):
        async with database.write() as connection:
            await connection.execute(text("INSERT INTO t VALUES (2), (2)"))
    async with database.write() as connection:
        await connection.execute(text("INSERT INTO t VALUES (3)"))
    async with database.read() as connection:
        assert (await connection.execute(text("SELECT n FROM t"))).scalars().all() == [3]
    await database.close()


async def test_writers_of_several_servers_lose_nothing(url: str) -> None:
    servers = [Database(url, timeout=120) for _ in range(3)]
    async with servers[0].write() as connection:
        await connection.execute(text("CREATE TABLE t (n INTEGER)"))
        await connection.execute(text("INSERT INTO t VALUES (0)"))

    async def add(server: Database) -> None:
        for _ in range(20):
            async with server.write() as connection:
                await connection.execute(text("UPDATE t SET n = n + 1"))

    await asyncio.gather(*(add(server) for server in servers for _ in range(2)))
    async with servers[0].read() as connection:
        assert (await connection.execute(text("SELECT n FROM t"))).scalar() == 120
    await asyncio.gather(*(server.close() for server in servers))


@needs_postgres
async def test_one_that_stops_and_comes_back(postgres: Postgres, names: object) -> None:
    database = Database(postgres.url("away"))
    await database.open()
    postgres.stop()
    try:
        with pytest.raises(Unavailable) as caught:
            async with database.write() as connection:
                await connection.execute(text("SELECT 1"))
        assert caught.value.code == "database_unavailable"
    finally:
        postgres.start()
    async with database.read() as connection:
        assert (await connection.execute(text("SELECT 1"))).scalar() == 1
    await database.close()


async def test_a_database_of_a_later_version_is_refused(url: str) -> None:
    database = Database(url)
    await database.open()
    async with database.write() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(ConfigError, match="9999"):
        await database.open()
    await database.close()


@pytest.mark.parametrize("wrong", ["", "nonsense", "mysql://x/y", "sqlite"])
def test_other_addresses_are_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="postgresql://"):
        database_url(wrong)


def test_a_password_is_not_shown() -> None:
    shown = str(Database("postgresql://me:secret@db.example/kept"))
    assert shown == "postgresql://me:***@db.example/kept"


def test_where_it_is() -> None:
    assert database_of(DataConfig(), {"XDG_STATE_HOME": "/s"}) == "sqlite:////s/tailrace/tailrace.db"
    assert database_of(DataConfig(data_folder="/d")) == "sqlite:////d/tailrace.db"
    assert database_of(DataConfig(database="postgresql://h/n")) == "postgresql://h/n"
    assert database_of(DataConfig(database="none")) == ""


@pytest.mark.parametrize("replaced", [False, True])
async def test_nothing_is_written_into_a_file_that_is_not_there_any_more(
    tmp_path: Path, replaced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "kept.db"
    database = Database(f"sqlite:///{path}")
    await database.open()
    path.rename(tmp_path / "moved.db")
    if replaced:
        path.touch()
    for _ in range(2):
        with pytest.raises(Unavailable) as caught:
            async with database.write():
                raise AssertionError("it has begun")
        assert caught.value.code == "database_unavailable"
    assert [record.getMessage() for record in caplog.records] == [
        f"{database} was deleted or replaced while it was open: nothing is kept in it until a restart"
    ]
    (tmp_path / "moved.db").rename(path)
    async with database.write() as connection:
        await connection.execute(text("SELECT 1"))
    await database.close()
