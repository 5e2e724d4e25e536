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
from tailrace.control.limits.limiter import Limiter
from tailrace.control.limits.memory import MemoryLimits
from tailrace.control.limits.redis import RedisLimits
from tailrace.errors import ConfigError, Unavailable
from tests.control.limits.programs import CAPS, EXACTS, LEARNED, SECONDS, WALL
from tests.redis_server import needs_redis, redis_server

pytestmark = needs_redis

ROOT = Path(__file__).resolve().parents[3]
LEASE = 30.0
PATIENT = 20.0  # seconds: how fast a busy machine answers is not what is tested
TIME = "redis.call('TIME')"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("redis")) as address:
        yield address


@asynccontextmanager
async def store(url: str, lease: float = LEASE) -> AsyncIterator[RedisLimits]:
    limits = RedisLimits(url, lease, timeout=PATIENT)
    try:
        yield limits
    finally:
        await limits.close()


class TimedLimits(RedisLimits):
    """With a clock that the test moves, in the place of the server's own."""

    def __init__(self, url: str, lease: float) -> None:
        super().__init__(url, lease, timeout=PATIENT)
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
        self.clock = ManualClock(now=WALL, wall=WALL)
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
from tailrace.control.limits.redis import RedisLimits

async def main(url, me, tries):
    store, to = RedisLimits(url, 600.0, timeout=120.0), Account("burst", Amounts(requests=50, output_tokens=1000))
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


ONE = Ask(Amounts(requests=1), NOTHING)
TO = Account("t", Amounts(requests=100))
IMPATIENT = 0.05  # seconds: for a Redis that answers nothing however long it takes


class Asked(RedisLimits):
    """Counts what it sends. Who has only its own Redis can let it hang: scripts wait then, and nothing else does."""

    sent = 0

    def __init__(self, url: str, clock: ManualClock) -> None:
        super().__init__(url, LEASE, timeout=PATIENT, clock=clock)
        script = self._script

        async def counted(**arguments: Any) -> Any:
            self.sent += 1
            return await script(**arguments)

        self._script = counted  # type: ignore[assignment]

    async def hang(self) -> None:
        await self._client.execute_command("CLIENT", "PAUSE", 10**9, "WRITE")
        self._timeout = IMPATIENT

    async def go_on(self) -> None:
        await self._client.execute_command("CLIENT", "UNPAUSE")
        self._timeout = PATIENT


@asynccontextmanager
async def own_redis(folder: Path, clock: ManualClock) -> AsyncIterator[Asked]:
    with redis_server(folder) as address:
        limits = Asked(address, clock)
        try:
            yield limits
        finally:
            await limits.close()


async def test_a_hung_redis_costs_one_caller_its_timeout_and_the_others_nothing(tmp_path: Path) -> None:
    clock = ManualClock()
    async with own_redis(tmp_path, clock) as limits:
        assert (await limits.reserve("a", (TO,), ONE)).kind is Kind.GRANTED
        await limits.hang()
        for number in range(5):
            with pytest.raises(Unavailable) as caught:
                await limits.reserve(f"b{number}", (TO,), ONE)
            assert (caught.value.code, caught.value.retry_after) == ("limits_unavailable", 1.0)
        assert limits.sent == 2
        clock.advance(1.0)
        for _ in range(3):
            with pytest.raises(Unavailable):
                await limits.standing(TO)
        assert limits.sent == 3


async def test_a_hung_redis_is_asked_again_once_the_pause_is_over(tmp_path: Path) -> None:
    clock = ManualClock()
    async with own_redis(tmp_path, clock) as limits:
        await limits.hang()
        with pytest.raises(Unavailable):
            await limits.standing(TO)
        await limits.go_on()
        with pytest.raises(Unavailable):
            await limits.standing(TO)
        assert limits.sent == 1
        clock.advance(1.0)
        assert (await limits.standing(TO))[0] == NOTHING
        assert (await limits.reserve("a", (TO,), ONE)).kind is Kind.GRANTED


async def test_what_is_let_in_unchecked_is_counted_when_redis_answers_again(tmp_path: Path) -> None:
    clock = ManualClock()
    async with own_redis(tmp_path, clock) as limits:
        limiter = Limiter(limits, admit_unchecked=True)
        await limits.hang()
        hold, outcome = await limiter.reserve((TO,), ONE)
        assert (outcome.kind, hold.granted) == (Kind.GRANTED, True)
        await limits.go_on()
        clock.advance(1.0)
        hold.settle(Amounts(requests=1, output_tokens=7))
        await asyncio.gather(*limiter._tasks)
        held, level = await limits.standing(TO)
        assert (held, round(level[0])) == (NOTHING, 1)
        await limiter.close()


async def test_a_server_that_takes_connections_and_never_says_a_word_is_not_waited_for() -> None:
    """As the kernel does for a Redis that is stopped: nobody answers, and no connection is refused."""
    leaves = asyncio.Event()

    async def mute(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await leaves.wait()
        writer.close()

    async with await asyncio.start_server(mute, "127.0.0.1", 0) as server:
        limits = Asked(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0", ManualClock())
        limits._timeout = IMPATIENT
        for _ in range(2):
            with pytest.raises(Unavailable):
                await limits.reserve("a", (TO,), ONE)
        assert limits.sent == 1
        await limits.close()
        leaves.set()


async def test_what_redis_refuses_itself_makes_nobody_else_wait(tmp_path: Path) -> None:
    async with own_redis(tmp_path, ManualClock()) as limits:
        await limits._client.set("{tailrace:t}:leases", "not a set")
        with pytest.raises(Unavailable):
            await limits.reserve("a", (TO,), ONE)
        other = Account("other", Amounts(requests=100))
        assert (await limits.reserve("b", (other,), ONE)).kind is Kind.GRANTED


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
