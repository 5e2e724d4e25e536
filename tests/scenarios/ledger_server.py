"""A server process over the fake backend that keeps a ledger: `python -m tests.scenarios.ledger_server URL FOLDER`.

Prints its address, serves until it is told to stop or killed.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tailrace.api.server import serve
from tailrace.observe.spill import Spill
from tests.serving import make_state


async def main(url: str, folder: str) -> None:
    state = make_state(database=url, spill=Spill(Path(folder), 10**6))

    def on_listening(address: str) -> None:
        state.keeping.start()
        state.ledger.start()
        print(address, flush=True)

    await serve(state, on_listening=on_listening)
    await state.close()
    await state.keeping.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
