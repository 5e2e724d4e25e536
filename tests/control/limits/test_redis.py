"""Limits in a real Redis: the script does step for step what the store in memory does, also with two gateways."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.clock import ManualClock
from tailrace.control.limits.base import NOTHING, Account, Amounts, Ask, Change, Kind
from tailrace.control.limits.memory import MemoryLimits
from tailrace.control.limits.redis import RedisLimits
from tailrace.errors import ConfigError, Unavailable
from tests.control.limits.programs import CAPS, EXACTS, LEARNED, SECONDS
from tests.redis_server import needs_redis, redis_server

pytestmark = needs_redis

ROOT = Path(__file__).resolve().parents[3]
LEASE = 30.0
TIME = "redis.call('TIME')"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("redis")) as address:
        yield address


@asynccontextmanager
async def store(url: str, lease: float = LEASE) -> AsyncIterator[RedisLimits]:
    limits = RedisLimits(url, lease)
    try:
        yield limits
    finally:
        await limits.close()


class TimedLimits(RedisLimits):
    """With a clock that the test moves, in the place of the server's own."""

    def __init__(self, url: str, lease: float) -> None:
        super().__init__(url, lease)
        text: str = self._script.script  # type: ignore[assignment]
        assert TIME in text
        self._script = self._client.register_script(text.replace(TIME, "redis.call('MGET', 'seconds', 'micros')"))

    async def at(self, now: float) -> None:
        micros = round(now * 1e6)
        await self._client.mset({"seconds": micros // 1_000_000, "micros": micros % 1_000_000})

    async def forget(self) -> None:
        await self._client.flushall()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), EXACTS, LEARNED, st.booleans(), st.integers(0, 9)),
        st.tuples(st.just("grow"), st.integers(0, 99)),
        st.tuples(st.just("change"), st.integers(0, 99), LEARNED, st.booleans()),
        st.tuples(st.just("wait"), SECONDS),
    ),
    max_size=25,
)


class Pair:
    """The same program on both stores."""

    def __init__(self, redis: TimedLimits, accounts: tuple[Account, ...]) -> None:
        self.redis, self.accounts = redis, accounts
        self.clock = ManualClock(now=1000.0)
        self.memory = MemoryLimits(self.clock, LEASE)
        self.asks: list[Ask] = []
        self.spent: list[Amounts] = []
        self.live: list[int] = []

    async def step(self, step: tuple[Any, ...]) -> None:
        await self.redis.at(self.clock.now())
        if step[0] == "wait":
            self.clock.advance(step[1])
        elif step[0] == "reserve":
            ask = Ask(step[1], step[2], step[3], step[4] == 0)
            self.asks.append(ask)
            self.spent.append(NOTHING)
            self.live.append(len(self.asks) - 1)
            await self.both("reserve", f"h{len(self.asks) - 1}", ask)
        elif self.live:
            await self.again(self.live[step[1] % len(self.live)], step)
        await self.compare()

    async def again(self, number: int, step: tuple[Any, ...]) -> None:
        if step[0] == "grow":
            await self.both("grow", f"h{number}", self.asks[number])
            return
        known = self.spent[number]
        self.spent[number] = known.plus(step[2].minus(Amounts(sequences=step[2].sequences)))
        change = Change(self.spent[number], known, Amounts(output_tokens=7), step[3])
        await self.both("change", f"h{number}", change)
        if change.done:
            self.live.remove(number)
            for op, what in (("change", change), ("grow", self.asks[number])):
                await self.both(op, f"h{number}", what)  # what comes too late changes nothing

    async def both(self, op: str, name: str, what: Any) -> None:
        theirs = await getattr(self.redis, op)(name, self.accounts, what)
        ours = await getattr(self.memory, op)(name, self.accounts, what)
        if ours is None:
            return
        assert (theirs.kind, theirs.counter, theirs.account) == (ours.kind, ours.counter, ours.account)
        assert theirs.wait == (ours.wait if ours.wait is None else pytest.approx(ours.wait, rel=1e-6, abs=1e-5))
        assert (theirs.value, theirs.cap) == (pytest.approx(ours.value, abs=1e-3), ours.cap)

    async def compare(self) -> None:
        await self.redis.at(self.clock.now())
        for account in self.accounts:
            theirs, ours = await self.redis.standing(account), await self.memory.standing(account)
            for c, cap in enumerate(account.caps):
                if cap:
                    assert theirs[0][c] == ours[0][c]
                    assert theirs[1][c] == pytest.approx(ours[1][c], abs=1e-3)


@settings(max_examples=25, deadline=None)
@given(CAPS, CAPS, STEPS)
def test_the_script_does_what_the_store_in_memory_does(
    url: str, tenant: Amounts, key: Amounts, steps: list[tuple[Any, ...]]
) -> None:
    async def program() -> None:
        redis = TimedLimits(url, LEASE)
        try:
            await redis.forget()
            pair = Pair(redis, (Account("acme", tenant), Account("acme/ci", key)))
            for step in steps:
                await pair.step(step)
            await redis.forget()
        finally:
            await redis.close()

    asyncio.run(program())


GATEWAY = """
import asyncio, json, sys
from tailrace.control.limits.base import Account, Amounts, Ask, Change
from tailrace.control.limits import redis
from tailrace.control.limits.redis import RedisLimits

async def main(url, me, tries):
    redis._TIMEOUT = 120.0
    store, to = RedisLimits(url, 600.0), Account("burst", Amounts(requests=50, output_tokens=1000))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    ask = Ask(Amounts(requests=1), Amounts(output_tokens=10))
    async def one(i):
        kind = int((await store.reserve(f"{me}-{i}", (to,), ask)).kind)
        held, level = await store.standing(to)
        return kind, held.requests + level[0]
    print(json.dumps(await asyncio.gather(*(one(i) for i in range(tries)))), flush=True)
    await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


async def gateway(url: str, name: str, tries: int) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", GATEWAY, url, name, str(tries), stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


async def go(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"go\n")
    return await process.stdout.readline()


async def test_200_at_once_from_two_gateways_on_a_limit_of_50_and_one_is_killed(url: str) -> None:
    import json

    gateways = [await gateway(url, name, 100) for name in ("a", "b")]
    answers = [json.loads(line) for line in await asyncio.gather(*(go(each) for each in gateways))]
    kinds = [kind for answer in answers for kind, _ in answer]
    assert max(total for answer in answers for _, total in answer) <= 50 + 1e-6  # at every moment that was looked at
    assert (kinds.count(Kind.GRANTED), kinds.count(Kind.OVER)) == (50, 150)
    to = Account("burst", Amounts(requests=50, output_tokens=1000))
    async with store(url, 600.0) as limits:
        assert (await limits.standing(to))[0].requests == 50
        gateways[0].send_signal(signal.SIGKILL)
        gateways[1].send_signal(signal.SIGKILL)
        await asyncio.gather(*(each.wait() for each in gateways))
        leases = "{tailrace:burst}:leases"
        await limits._client.zadd(
            leases, dict.fromkeys(await limits._client.zrange(leases, 0, -1), 1)
        )  # they have ended
        assert (await limits.standing(to))[0] == NOTHING
        assert (await limits.reserve("new", (to,), Ask(Amounts(requests=50), NOTHING))).kind is Kind.GRANTED
        await limits.change("new", (to,), Change(NOTHING, done=True))


async def test_a_renewed_hold_outlives_its_lease(url: str) -> None:
    to = Account("renewed", Amounts(sequences=1))
    async with store(url, 60.0) as limits:
        leases, ask = "{tailrace:renewed}:leases", Ask(NOTHING, Amounts(sequences=1))
        await limits.reserve("h", (to,), ask)
        first = await limits._client.zscore(leases, "h")
        await limits.change("h", (to,), Change(NOTHING))
        assert await limits._client.zscore(leases, "h") > first  # Redis' own clock, in microseconds
        assert (await limits.reserve("x", (to,), ask)).kind is Kind.PARTIAL
        await limits._client.zadd(leases, {"h": 1})  # its lease has ended
        assert (await limits.grow("x", (to,), ask)).kind is Kind.GRANTED


async def test_without_a_server_nobody_is_let_in() -> None:
    async with store("redis://127.0.0.1:1/0") as limits:
        with pytest.raises(Unavailable) as caught:
            await limits.reserve("h", (Account("t", Amounts(requests=1)),), Ask(Amounts(requests=1), NOTHING))
        assert caught.value.code == "limits_unavailable"


def test_a_wrong_address_is_told_at_start() -> None:
    with pytest.raises(ConfigError, match="limits_url"):
        RedisLimits("http://somewhere", LEASE)


@pytest.mark.parametrize(
    "url",
    [
        "http://:secret@h",
        "redis://:secret@h:port/0",
        "redis://:secret@h/zero",
        "redis://:secret@h/-1",
        "redis://:secret@h/0?foo=1",
        "redis://u:secret@h/0/1",
        "",
    ],
)
def test_a_wrong_address_never_shows_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match="limits_url") as caught:
        RedisLimits(url, 1.0)
    assert "secret" not in caught.value.message
