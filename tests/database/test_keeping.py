"""A database that is opened beside the serving: late, never, or not at all."""

from __future__ import annotations

import pytest

from tailrace.database.keeping import Keeping
from tailrace.errors import Unavailable
from tests.postgres_server import Postgres, needs_postgres


async def test_it_opens_by_itself(url: str) -> None:
    keeping = Keeping(url)
    assert keeping.wanted and keeping.now is None
    keeping.start()
    kept = await keeping.needed()
    assert keeping.now is kept
    await keeping.close()


async def test_nothing_is_kept() -> None:
    keeping = Keeping("")
    keeping.start()
    assert not keeping.wanted
    with pytest.raises(Unavailable) as caught:
        await keeping.needed()
    assert (caught.value.status, caught.value.code) == (503, "nothing_kept")
    await keeping.close()


@needs_postgres
async def test_one_that_is_away_is_opened_when_it_comes(postgres: Postgres) -> None:
    url = postgres.url("late")
    postgres.stop()
    keeping = Keeping(url, patience=0.1)
    keeping.start()
    try:
        with pytest.raises(Unavailable) as caught:
            await keeping.needed()
        assert caught.value.code == "database_unavailable" and caught.value.retry_after == 1
    finally:
        postgres.start()
    assert await keeping.opened() is keeping.now
    await keeping.close()
