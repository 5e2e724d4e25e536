"""A server process over the fake backend: `python -m tests.scenarios.fake_server DRAIN_SECONDS`.

Prints its address, serves until it is told to stop. Its answers stand still until a line comes in, so that whoever
started it finds them running however slow either process is.
"""

from __future__ import annotations

import asyncio
import sys

from tailrace.api.server import serve
from tailrace.backends.fake import FakeBackend
from tests.serving import make_state


async def work(backend: FakeBackend) -> None:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    if await lines.readline():
        while True:
            backend.step()
            await asyncio.sleep(0.001)


async def main(drain_timeout: float) -> None:
    backend = FakeBackend(manual=True, max_sequences=4)
    state = make_state(backend, control={"drain_timeout": drain_timeout})
    working = asyncio.create_task(work(backend))
    await serve(state, on_listening=lambda address: print(address, flush=True))
    working.cancel()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
