"""One of several gateways over the fake backend, with limits in Redis: `python -m tests.scenarios.gateway URL LEASE`.

Prints its address, serves until it is told to stop.
"""

from __future__ import annotations

import asyncio
import sys

from tailrace.api.server import serve
from tailrace.backends.fake import FakeBackend
from tailrace.backends.faulty import Fault, FaultyBackend, Kind
from tailrace.control.limits.redis import RedisLimits
from tailrace.policy import DEFAULT_TENANT, Policy, Quota, TenantPolicy
from tailrace.types import GenerateRequest
from tests.serving import make_state

LONG = 400  # tokens
PATIENT = 120.0  # seconds: a busy machine is no Redis that is gone
QUOTA = Quota(requests_per_minute=50, output_tokens_per_minute=100_000, concurrency=400)
POLICY = Policy((TenantPolicy(DEFAULT_TENANT, limits=QUOTA),))


def hangs(request: GenerateRequest) -> Fault | None:
    """A long answer never ends."""
    return Fault(Kind.HANG, 1) if request.stop.max_tokens >= LONG else None


async def main(url: str, lease: float) -> None:
    backend = FaultyBackend(FakeBackend(max_sequences=64, step_seconds=0.002), hangs)
    state = make_state(backend, policy=POLICY, store=RedisLimits(url, lease, timeout=PATIENT))
    await serve(state, on_listening=lambda address: print(address, flush=True))
    await state.pipeline.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
