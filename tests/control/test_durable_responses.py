"""Kept responses over a database that is there, late, or away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tailrace.clock import ManualClock, SystemClock
from tailrace.control.durable_responses import DurableResponses
from tailrace.database.keeping import Keeping
from tailrace.database.kept import Kept
from tailrace.database.response import KeptResponse
from tailrace.errors import Unavailable
from tests.serving import until

MOST = 10_000


class Away(Keeping):
    """A database that does not answer while `away`."""

    away = False

    async def needed(self) -> Kept:
        if self.away:
            raise Unavailable("The database does not answer", code="database_unavailable", retry_after=1.0)
        return await super().needed()


def kept(name: str, previous: str | None = None, size: int = 10) -> KeptResponse:
    return KeptResponse(name, b'"' + b"x" * size + b'"', b"[]", previous)


@pytest.fixture
async def keeping(tmp_path: Path):  # type: ignore[no-untyped-def]
    made = Away(f"sqlite:///{tmp_path / 'kept.db'}", patience=60)
    made.start()
    yield made
    await made.close()


def store_of(keeping: Keeping, clock: ManualClock | None = None, most: int = MOST) -> DurableResponses:
    return DurableResponses(keeping, clock or SystemClock(), most=most, retention=100.0)


async def written(store: DurableResponses) -> None:
    """A response that is put waits for a slow database for a second only."""
    await until(lambda: store.unwritten == 0)


async def test_a_response_outlives_its_server(keeping: Away) -> None:
    store = store_of(keeping, most=100 * MOST)
    await asyncio.gather(*(store.put("a", kept(f"r{number}")) for number in range(250)))
    await written(store)
    await store.close()
    again = store_of(keeping)
    assert await again.get("a", "r249") == kept("r249")
    assert await again.get("b", "r249") is None
    assert (store.lost, store.unwritten) == (0, 0)


async def test_a_chain_of_written_and_unwritten_ones(keeping: Away) -> None:
    store = store_of(keeping)
    await store.put("a", kept("r0"))
    await store.put("a", kept("r1", "r0"))
    await written(store)
    keeping.away = True
    await store.put("a", kept("r2", "r1"))
    await store.put("a", kept("r3", "r2"))
    with pytest.raises(Unavailable):
        await store.chain("a", "r3")
    assert await store.get("a", "r3") == kept("r3", "r2")
    assert store.unwritten == 2
    keeping.away = False
    found = await store.chain("a", "r3")
    assert found is not None
    assert [each.id for each in found] == ["r0", "r1", "r2", "r3"]
    assert await store.chain("b", "r3") is None
    await store.close()


async def test_nothing_waits_for_a_database_that_is_away(keeping: Away) -> None:
    store = store_of(keeping)
    keeping.away = True
    await store.put("a", kept("r0"))
    assert store.unwritten == 1
    with pytest.raises(Unavailable) as away:
        await store.get("a", "gone")
    assert away.value.status == 503
    with pytest.raises(Unavailable):
        await store.delete("a", "r0")
    keeping.away = False
    await written(store)
    assert await store_of(keeping).get("a", "r0") == kept("r0")
    await store.close()


async def test_what_waits_is_bounded(keeping: Away) -> None:
    store = store_of(keeping)
    keeping.away = True
    for number in range(20):
        await store.put("a", kept(f"r{number}", size=1000))
    await store.put("a", kept("large", size=MOST))
    assert store.lost + store.unwritten == 21
    assert store.unwritten == 0  # the last needed all the room, and did not fit either
    keeping.away = False
    await store.put("a", kept("r30"))
    assert await store.get("a", "r30") == kept("r30")
    await store.close()


async def test_what_is_deleted_stays_deleted(keeping: Away) -> None:
    store = store_of(keeping)
    put = asyncio.create_task(store.put("a", kept("r0")))
    await until(lambda: store.unwritten)
    assert not await store.delete("b", "r0")
    assert await store.delete("a", "r0")
    await put
    assert await store.get("a", "r0") is None
    assert not await store.delete("a", "r0")
    await store.close()


async def test_old_ones_are_not_found_and_forgotten(keeping: Away) -> None:
    clock = ManualClock()
    store = store_of(keeping, clock)
    await store.put("a", kept("r0"))
    await written(store)
    clock.advance(101.0)
    assert await store.get("a", "r0") is None
    clock.advance(3600.0)
    await store.put("a", kept("r1"))
    await written(store)
    await store.close()
    assert await (await keeping.needed()).responses.get("a", "r0", 0) is None
