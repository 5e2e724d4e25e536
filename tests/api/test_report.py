"""Reports over HTTP: operators see all, a tenant its own alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailrace.api.state import AppState
from tailrace.control.keys import digest
from tailrace.policy import KeyPolicy, Policy, Price, Prices, TenantPolicy
from tests.serving import chat, in_process, make_state

PRICES = Prices("EUR", {"default": Price(output_million=1000 * 10**9)})


def tenant(name: str, *scopes: str) -> TenantPolicy:
    return TenantPolicy(name, keys=(KeyPolicy("k", f"sha256:s:{digest(name, 's')}", scopes=("inference", *scopes)),))


@pytest.fixture
async def state(tmp_path: Path) -> AsyncIterator[AppState]:
    policy = Policy((tenant("acme"), tenant("other"), tenant("boss", "admin")), prices=PRICES)
    state = make_state(policy=policy, database=f"sqlite:///{tmp_path / 'kept.db'}")
    state.keeping.start()
    await state.keeping.opened()
    yield state
    await state.close()
    await state.keeping.close()


async def ask(client: httpx.AsyncClient, path: str, key: str) -> httpx.Response:
    return await client.get(path, headers={"authorization": f"Bearer {key}"})


async def used(state: AppState, client: httpx.AsyncClient) -> None:
    """Five requests, all in the ledger."""
    for name, max_tokens in (("acme", 2), ("acme", 3), ("acme", 0), ("other", 4), ("other", 5)):
        sent = {"authorization": f"Bearer {name}"}
        await client.post("/v1/chat/completions", json=chat(max_tokens=max_tokens, ignore_eos=True), headers=sent)
    await state.ledger.close()


async def test_each_sees_what_is_its_own(state: AppState) -> None:
    async with in_process(state) as client:
        await used(state, client)
        everything = (await ask(client, "/admin/report?by=tenant,day&since=1h", "boss")).json()
        own = (await ask(client, "/v1/report?by=tenant&tenant=other", "acme")).json()
        others = (await ask(client, "/admin/report?by=class&tenant=other", "boss")).json()
        refused = await ask(client, "/admin/report", "acme")
    assert everything["total"]["requests"] == 5
    assert everything["currency"] == "EUR"
    groups = {group["group"]["tenant"]: group for group in everything["groups"]}
    assert {name: group["outcomes"] for name, group in groups.items()} == {
        "acme": {"invalid": 1, "ok": 2},
        "other": {"ok": 2},
    }
    assert groups["other"]["money"] == 0.009
    assert groups["other"]["tokens"]["output"] == 9
    assert groups["other"]["ttft_ms"]["count"] == 2
    assert [group["group"] for group in own["groups"]] == [{"tenant": "acme"}]
    assert (own["total"]["requests"], own["tenant"]) == (3, "acme")
    assert [(group["group"], group["requests"]) for group in others["groups"]] == [({"class": "interactive"}, 2)]
    assert refused.status_code == 403


@pytest.mark.parametrize(
    ("query", "param"),
    [("since=yesterday", "since"), ("by=colour", "by"), ("since=1h&until=2h", "since"), ("until=2027-02-30", "until")],
)
async def test_what_is_refused_names_its_parameter(state: AppState, query: str, param: str) -> None:
    async with in_process(state) as client:
        answer = await ask(client, f"/v1/report?{query}", "acme")
    body: dict[str, Any] = answer.json()["error"]
    assert (answer.status_code, body["param"]) == (400, param)


async def test_without_a_database_there_is_nothing_to_report() -> None:
    async with in_process(make_state()) as client:
        answer = await client.get("/v1/report")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "nothing_kept")
