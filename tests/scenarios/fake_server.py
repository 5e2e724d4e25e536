"""A server process over the fake backend: `python -m tests.scenarios.fake_server DRAIN_SECONDS [SLOTS [RESTARTS]]`.

Prints its address, serves until it is told to stop. Its answers stand still until a line comes in, so that whoever
started it finds them running however slow either process is; after the line `fault` the engine is broken instead.
"""

from __future__ import annotations

import asyncio
import sys

from tailrace.api.server import serve
from tailrace.backends.fake import FakeBackend
from tailrace.types import Pulse
from tests.serving import make_state


async def work(backend: FakeBackend) -> None:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    line = await lines.readline()
    if line == b"fault\n":
        backend.beat = Pulse(fault="crashed")
    elif line:
        while True:
            backend.step()
            await asyncio.sleep(0.001)


async def main(drain_timeout: str, slots: str = "4", max_restarts: str = "3") -> int:
    backend = FakeBackend(manual=True, max_sequences=int(slots))
    control = {"drain_timeout": float(drain_timeout), "max_restarts": int(max_restarts)}
    state = make_state(backend, control=control)
    working = asyncio.create_task(work(backend))
    well = await serve(state, on_listening=lambda address: print(address, flush=True))
    working.cancel()
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
