"""Two gateway processes and one Redis: together they keep a limit exactly, and a killed one leaves nothing stuck."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx

from tailrace.control.limits.base import Account, Amounts, caps
from tailrace.control.limits.redis import RedisLimits
from tests.redis_server import needs_redis, redis_server
from tests.scenarios.child import child
from tests.scenarios.gateway import LONG, QUOTA
from tests.serving import chat

pytestmark = needs_redis

CHAT = "/v1/chat/completions"
LEASE = 600.0
ACCOUNT = Account("default", caps(QUOTA))


def gateway(url: str) -> AbstractAsyncContextManager[tuple[asyncio.subprocess.Process, str]]:
    return child("tests.scenarios.gateway", url, str(LEASE), ended_by=signal.SIGTERM)


async def settled(store: RedisLimits) -> tuple[float, ...]:
    """The levels, once nothing is held any more. Each look is a round trip, so nothing spins."""
    async with asyncio.timeout(120):
        while True:
            held, level = await store.standing(ACCOUNT)
            if held == Amounts():
                return level
            await asyncio.sleep(0.05)


async def test_two_gateways_keep_one_limit_and_a_killed_one_leaves_nothing_stuck(tmp_path: Path) -> None:
    with redis_server(tmp_path) as url:
        store = RedisLimits(url, LEASE, timeout=20.0)
        async with (
            gateway(url) as (_, first),
            gateway(url) as (killed, second),
            httpx.AsyncClient(timeout=120) as client,
        ):
            begin = time.monotonic()
            posts = [client.post((first, second)[i % 2] + CHAT, json=chat(max_tokens=8)) for i in range(200)]
            answers = await asyncio.gather(*posts)
            passed = time.monotonic() - begin
            codes = [answer.status_code for answer in answers]
            assert codes.count(200) + codes.count(429) == 200
            assert 50 <= codes.count(200) <= 50 + passed * 50 / 60 + 1  # and what time has forgiven meanwhile
            assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers if answer.status_code == 429)
            level = await settled(store)
            assert level[0] <= 50
            # Its hold is held by a long answer when the process dies, and is free when its lease ends.
            room = Account("default", caps(QUOTA)._replace(requests=0))
            await client.aclose()
            await store._client.hset("{tailrace:default}:acct:default", "l1", "0")  # time passes: requests refill
            async with httpx.AsyncClient(timeout=120) as caller:
                body = chat(max_tokens=LONG, ignore_eos=True)
                task = asyncio.create_task(caller.post(second + CHAT, json=body))
                async with asyncio.timeout(120):
                    while not (await store.standing(room))[0].sequences:  # noqa: ASYNC110 - another process' state
                        await asyncio.sleep(0.01)
                killed.kill()
                await killed.wait()
                await asyncio.gather(task, return_exceptions=True)
            assert (await store.standing(room))[0].sequences == 1
            leases = "{tailrace:default}:leases"
            (dead,) = await store._client.zrange(leases, 0, -1)
            await store._client.zadd(leases, {dead: 1})  # its lease ends
            assert (await store.standing(ACCOUNT))[0] == Amounts()
        await store.close()
