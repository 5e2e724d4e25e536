"""A server process over the fake backend: `python -m tests.scenarios.fake_server STEP_SECONDS DRAIN_SECONDS`.

Prints its address, serves until it is told to stop.
"""

from __future__ import annotations

import asyncio
import sys

from tailrace.api.server import serve
from tailrace.backends.fake import FakeBackend
from tests.serving import make_state


async def main(step_seconds: float, drain_timeout: float) -> None:
    backend = FakeBackend(step_seconds=step_seconds, max_sequences=4)
    state = make_state(backend, control={"drain_timeout": drain_timeout})
    await serve(state, on_listening=lambda address: print(address, flush=True))


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]), float(sys.argv[2])))
