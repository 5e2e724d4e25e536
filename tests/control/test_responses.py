"""Kept responses: bounded, fair, and nobody's but their tenant's - against a simple model of the store."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from tailrace.control.responses import MemoryResponses
from tailrace.database.response import KeptResponse

MOST = 10_000
STEP = st.tuples(
    st.sampled_from(["put", "get", "delete"]), st.sampled_from("ab"), st.integers(0, 6), st.integers(0, 3000)
)


def kept(name: str, size: int = 0, previous: str | None = None) -> KeptResponse:
    return KeptResponse(name, b"x" * size, b"[]", previous)


@given(st.lists(STEP, max_size=60))
def test_it_holds_what_was_put_within_its_bound(steps: list[tuple[str, str, int, int]]) -> None:
    async def program() -> None:
        store, put = MemoryResponses(MOST), dict[tuple[str, str], KeptResponse]()
        for number, (verb, tenant, index, size) in enumerate(steps):
            name = f"{tenant}{index}" if verb != "put" else f"{tenant}{number % 7}"
            if verb == "put" and (tenant, name) not in put:
                put[tenant, name] = kept(name, size)
                await store.put(tenant, put[tenant, name])
            elif verb == "delete":
                was = await store.get(tenant, name) is not None
                assert await store.delete(tenant, name) is was
                put.pop((tenant, name), None)
            found = await store.get(tenant, name)
            assert found in (None, put.get((tenant, name)))
            assert await store.get("ab".replace(tenant, ""), name) is None
            held = [each for (owner, key), each in [*put.items()] if await store.get(owner, key) is each]
            assert store.size == sum(each.size for each in held) <= MOST
            for key in [key for key in put if await store.get(*key) is None]:
                del put[key]  # given up

    asyncio.run(program())


async def test_whoever_keeps_the_most_gives_up_first() -> None:
    store = MemoryResponses(MOST)
    await store.put("small", kept("first", 2000))
    for number in range(20):
        await store.put("large", kept(f"r{number}", 1000))
    assert await store.get("small", "first") is not None
    assert await store.get("large", "r0") is None
    assert await store.get("large", "r19") is not None


async def test_what_was_read_stays_longer() -> None:
    store = MemoryResponses(3 * kept("x", 1000).size)
    for name in ("r0", "r1", "r2"):
        await store.put("a", kept(name, 1000))
    await store.get("a", "r0")
    await store.put("a", kept("r3", 1000))
    assert [await store.get("a", name) is not None for name in ("r0", "r1", "r2", "r3")] == [True, False, True, True]


async def test_what_is_too_large_costs_nobody_anything() -> None:
    store = MemoryResponses(MOST)
    await store.put("a", kept("r0", 1000))
    await store.put("a", kept("r1", MOST))
    assert [await store.get("a", name) is not None for name in ("r0", "r1")] == [True, False]


async def test_nothing_is_kept_without_memory() -> None:
    store = MemoryResponses(0)
    await store.put("a", kept("r"))
    assert (await store.get("a", "r"), store.size) == (None, 0)


async def test_a_chain_is_whole_or_not_there() -> None:
    store = MemoryResponses(MOST)
    for name, previous in (("r0", None), ("r1", "r0"), ("r2", "r1")):
        await store.put("a", kept(name, previous=previous))
    found = await store.chain("a", "r2")
    assert found is not None
    assert [each.id for each in found] == ["r0", "r1", "r2"]
    assert await store.chain("b", "r2") is None
    await store.delete("a", "r0")
    assert await store.chain("a", "r2") is None
