"""What is spent stays spent: a server that is killed, or that could not reach its database, and one after it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from tailrace.database.database import Database
from tailrace.database.ledger import LedgerTable
from tailrace.observe.entry import About
from tailrace.observe.spill import Spill
from tailrace.policy import Policy
from tests.observe.test_entry import closed, made
from tests.scenarios.budgeted import POLICY, TOKEN
from tests.scenarios.child import child
from tests.serving import chat, in_process, make_state, patient

CHAT, BUDGET = "/v1/chat/completions", "/v1/budget"


async def spend(client: httpx.AsyncClient, tokens: int) -> int:
    answer = await client.post(CHAT, json=chat(max_tokens=tokens, ignore_eos=True))
    assert answer.status_code == 200
    return int(answer.json()["usage"]["completion_tokens"]) * TOKEN


async def budget(client: httpx.AsyncClient) -> dict[str, Any]:
    (limit,) = (await client.get(BUDGET)).json()["limits"]
    return dict(limit)


async def rows(database: Database, count: int) -> None:
    """Wait until the ledger has so many."""
    async with asyncio.timeout(120):
        while len(await LedgerTable(database).latest("default", count)) < count:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)


async def test_what_was_spent_is_still_spent_when_a_server_was_killed(url: str, tmp_path: Path) -> None:
    database = Database(url)
    async with (
        child("tests.scenarios.budgeted", url, str(tmp_path)) as (_, address),
        patient(base_url=address) as client,
    ):
        assert (await budget(client))["spent"] == 0
        assert await spend(client, 15) + await spend(client, 2) == 17_000
        await rows(database, 2)
    async with (
        child("tests.scenarios.budgeted", url, str(tmp_path)) as (_, address),
        patient(base_url=address) as client,
    ):
        now = await budget(client)
        assert (now["spent"], now["held"], now["allowed"], now["unit"]) == (0.017, 0, 0.02, "EUR")
        await spend(client, 3)
        refused = await client.post(CHAT, json=chat())
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "budget_exhausted")
        assert refused.json()["error"]["detail"]["spent"] == 0.02
    await database.close()


async def test_what_a_server_set_aside_for_its_database_is_spent_too(url: str, tmp_path: Path) -> None:
    earlier = Spill(tmp_path, 2**20)
    about = About("r", "a", "chat", "default")
    earlier.append([made(closed(price=4000), about, ended=time.time()).row() for _ in range(3)])
    earlier.close()
    state = make_state(policy=POLICY, database=url, spill=Spill(tmp_path, 2**20))
    state.keeping.start()
    state.ledger.start()
    async with in_process(state) as client:
        assert (await budget(client))["spent"] == 0.012
    await state.close()
    await state.keeping.close()


async def test_while_the_database_is_away_a_budget_is_not_spent(tmp_path: Path) -> None:
    """`tmp_path` is a folder: no database can be opened there. Whoever has no budget is served."""
    state = make_state(policy=POLICY, database=f"sqlite:///{tmp_path}", patience=0.01)
    state.keeping.start()
    state.ledger.start()
    async with in_process(state) as client:
        refused = await client.post(CHAT, json=chat())
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "limits_unavailable")
        assert refused.headers["retry-after"] == "1"
        assert (await client.get(BUDGET)).status_code == 503
        assert (await client.get("http://127.0.0.1/admin/state")).json()["budgets"] is None
        state.pipeline.tenants.configure(replace(state.config, policy=Policy()))
        assert (await client.post(CHAT, json=chat())).status_code == 200
    await state.close()
    await state.keeping.close()
