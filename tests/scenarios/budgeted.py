"""A server process over the fake backend whose callers have a budget of money: `python -m tests.scenarios.budgeted
DATABASE FOLDER`. Prints its address, serves until it is ended; its ledger waits in the folder for a database that is
away.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tailrace.api.server import serve
from tailrace.observe.spill import Spill
from tailrace.policy import DEFAULT_TENANT, Policy, Price, Prices, Quota, TenantPolicy
from tests.serving import make_state

TOKEN = 1000  # millionths that a generated token costs
POLICY = Policy(
    (TenantPolicy(DEFAULT_TENANT, limits=Quota(money_per_month=0.02)),),
    prices=Prices("EUR", {"default": Price(output_million=TOKEN * 10**9)}),
)


async def main(database: str, folder: str) -> None:
    state = make_state(policy=POLICY, database=database, spill=Spill(Path(folder), 2**20))

    def listening(address: str) -> None:
        state.keeping.start()
        state.ledger.start()
        print(address, flush=True)

    await serve(state, on_listening=listening)
    await state.pipeline.close()
    await state.close()
    await state.keeping.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
