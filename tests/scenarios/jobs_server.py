"""A server over the fake backend that keeps its jobs: `python -m tests.scenarios.jobs_server DATABASE FOLDER`.

Prints its address, serves and runs jobs until it is told to stop, or killed.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tailrace.api.server import serve
from tailrace.backends.fake import FakeBackend
from tailrace.control.jobs.instance import Instance
from tests.serving import make_state


async def main(database: str, folder: str) -> None:
    instance = Instance(Path(folder))
    state = make_state(FakeBackend(step_seconds=0.002, max_sequences=8), database=database, control={"job_lines": 4})
    state.plane.server = instance.name

    def on_listening(address: str) -> None:
        state.keeping.start()
        state.runner.start()
        print(address, flush=True)

    await serve(state, on_listening=on_listening)
    await state.close()
    await state.keeping.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
