"""Kept responses on both databases: whose they are, chains of them, how long they stay."""

from __future__ import annotations

import pytest

from tailrace.database.database import Database
from tailrace.database.response import KeptResponse
from tailrace.database.responses import Responses
from tailrace.errors import InvalidRequest


def kept(name: str, previous: str | None = None, body: str = '{"é": "\\u0000"}') -> KeptResponse:
    return KeptResponse(name, body.encode(), b"[]", previous)


@pytest.fixture
async def database(url: str):  # type: ignore[no-untyped-def]
    made = Database(url)
    await made.open()
    yield made
    await made.close()


async def test_a_response_is_its_tenants_alone(database: Database) -> None:
    store = Responses(database)
    await store.put([("a", kept("r0"), 5.0), ("b", kept("r1"), 5.0)])
    await store.put([("b", kept("r0", body="{}"), 6.0)])  # repeated writes change nothing
    assert await store.get("a", "r0", 0) == kept("r0")
    assert await store.get("b", "r0", 0) is None
    assert not await store.change("b", "r0", b"[]")
    assert not await store.delete("b", "r0")
    assert await store.change("a", "r0", b'{"status": 1}')
    assert await store.get("a", "r0", 0) == kept("r0", body='{"status": 1}')
    assert await store.delete("a", "r0")
    assert not await store.delete("a", "r0")
    assert not await store.change("a", "r0", b"[]")


async def test_a_chain_ends_where_one_is_missing(database: Database) -> None:
    store = Responses(database)
    await store.put([("a", kept("r0"), 1.0), ("a", kept("r1", "r0"), 2.0), ("a", kept("r2", "r1"), 3.0)])
    await store.put([("b", kept("x", "r2"), 3.0), ("a", kept("loop", "loop"), 3.0)])
    assert [each.id for each in await store.chain("a", "r2", 0, 1000)] == ["r2", "r1", "r0"]
    assert [each.id for each in await store.chain("a", "r2", 1.5, 1000)] == ["r2", "r1"]
    assert [each.id for each in await store.chain("b", "x", 0, 1000)] == ["x"]
    assert [each.id for each in await store.chain("a", "loop", 0, 1000)] == ["loop"]
    assert await store.chain("b", "r2", 0, 1000) == []
    with pytest.raises(InvalidRequest) as refused:
        await store.chain("a", "r2", 0, 40)
    assert refused.value.param == "previous_response_id"


async def test_old_ones_are_forgotten(database: Database) -> None:
    store = Responses(database)
    await store.put([("a", kept(f"r{number}"), float(number)) for number in range(1500)])
    assert await store.get("a", "r3", 4.0) is None
    assert await store.forget(1200.0) == 1200
    assert await store.get("a", "r1199", 0) is None
    assert await store.get("a", "r1200", 0) is not None
