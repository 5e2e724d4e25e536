"""What a tenant reads of its own requests, from memory and from the database, and what it says of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tailrace.api.state import AppState
from tailrace.policy import KeyPolicy, Policy, TenantPolicy
from tests.api.test_operator import hashed
from tests.api.test_tenants import bearer, tenant
from tests.serving import chat, in_process, make_state, until

CHAT = "/v1/chat/completions"


@pytest.fixture
async def app(url: str) -> AsyncIterator[AppState]:
    app = make_state(policy=Policy((tenant("acme"), tenant("other"))), database=url)
    app.keeping.start()
    yield app
    await app.close()
    await app.keeping.close()


def forget(app: AppState, rows: int) -> Any:
    """Have all that ended in the database and nowhere else."""

    async def forgotten() -> None:
        await until(lambda: app.ledger.written == rows)
        app.records._latest.clear()
        app.records._known.clear()

    return forgotten()


async def read(client: httpx.AsyncClient, path: str, tenant: str = "acme") -> dict[str, Any]:
    answer = await client.get(f"/v1/requests{path}", headers=bearer(tenant))
    return {"code": answer.status_code, **answer.json()}


async def test_a_record_is_the_same_from_memory_and_from_the_database(app: AppState) -> None:
    async with in_process(app) as client:
        headers = {**bearer("acme"), "x-request-id": "mine", "x-tailrace-task": "triage"}
        answer = (await client.post(CHAT, json=chat("hello", max_tokens=3), headers=headers)).json()
        found = await read(client, "/mine")
        assert (found["task"], found["model"], found["status"]) == ("triage", "fake", 200)
        assert (found["weights_format"], found["kv_format"], found["kv_blocks"]) == ("bytes", "none", 2)
        assert found["answer_id"] == answer["id"]
        assert [found[name] for name in ("prompt_tokens", "completion_tokens")] == [
            answer["usage"][name] for name in ("prompt_tokens", "completion_tokens")
        ]
        await forget(app, 1)
        for name in ("mine", answer["id"], found["entry_id"]):
            assert await read(client, f"/{name}") == found
            assert (await read(client, f"/{name}", "other"))["code"] == 404
        for nothing in ("none", "%00", "x" * 200, "%F0%9F%98%80"):
            assert (await read(client, f"/{nothing}"))["code"] == 404


async def test_what_no_key_opens_is_counted_and_leaves_no_row(url: str) -> None:
    keys = KeyPolicy("all", hashed("all")), KeyPolicy("ops", hashed("ops"), scopes=("admin",))
    app = make_state(policy=Policy((TenantPolicy("acme", keys=keys),)), database=url)
    app.keeping.start()
    async with in_process(app) as client:
        for key, status in (("none", 401), ("ops", 403), ("all", 200)):
            asked = await client.post(CHAT, json=chat(max_tokens=1), headers={"authorization": f"Bearer {key}"})
            assert asked.status_code == status
    await app.close()
    assert (app.ledger.written, app.ledger.dropped) == (1, 0)
    labels = {"domain": "ingress", "kind": "access"}
    assert app.metrics.registry.get_sample_value("tailrace_errors_total", labels) == 2
    await app.keeping.close()


async def test_those_that_were_refused_are_there_too(app: AppState) -> None:
    async with in_process(app) as client:
        for number, body in enumerate([chat(model="no\0such"), chat(max_tokens=-1), {"messages": 5}]):
            headers = {**bearer("acme"), "x-request-id": f"r{number}"}
            assert (await client.post(CHAT, json=body, headers=headers)).status_code in (400, 404)
        wrong = {**bearer("acme"), "x-request-id": "r3", "x-tailrace-task": "x" * 65}
        assert (await client.post(CHAT, json=chat(), headers=wrong)).json()["error"]["param"] == "x-tailrace-task"
        await forget(app, 4)
        found = [await read(client, f"/r{number}") for number in range(4)]
    assert [(each["outcome"], each["error_code"]) for each in found] == [
        ("invalid", "model_not_found"),
        ("invalid", "invalid_value"),
        ("invalid", "invalid_value"),
        ("invalid", "invalid_request_error"),
    ]
    assert [each["error"]["param"] for each in found] == ["model", "max_tokens", "messages", "x-tailrace-task"]
    assert found[0]["model_asked"] == "no\ufffdsuch"


async def test_the_list_goes_back_in_pages(app: AppState) -> None:
    async with in_process(app) as client:
        for number in range(7):
            name = "other" if number == 3 else "acme"
            await client.post(CHAT, json=chat(max_tokens=1), headers={**bearer(name), "x-request-id": f"r{number}"})
            if number == 4:
                await forget(app, 5)  # these are read from the database, the others from memory
        first = await read(client, "?limit=4")
        rest = await read(client, f"?limit=4&after={first['last_id']}")
        wrong = [await read(client, query) for query in ("?after=x", "?limit=0", "?order=asc")]
        empty = await read(client, "", "nobody")
    assert sorted(each["id"] for each in first["data"] + rest["data"]) == ["r0", "r1", "r2", "r4", "r5", "r6"]
    entries = [each["entry_id"] for each in first["data"] + rest["data"]]
    assert entries == sorted(entries, reverse=True)
    assert (first["has_more"], rest["has_more"], rest["last_id"]) == (True, False, entries[-1])
    assert [each["error"]["param"] for each in wrong] == ["after", "limit", "order"]
    assert empty["code"] == 401


async def test_what_a_tenant_says_of_its_request(app: AppState) -> None:
    async with in_process(app) as client:

        async def say(tenant: str = "acme", **body: Any) -> httpx.Response:
            return await client.post("/v1/feedback", json={"request_id": "mine", **body}, headers=bearer(tenant))

        headers = {**bearer("acme"), "x-request-id": "mine"}
        body = chat(max_tokens=1, metadata={"task": "triage"})
        answer = (await client.post(CHAT, json=body, headers=headers)).json()
        assert (await read(client, "/mine"))["feedback"] is None
        first = await say(success=False, comment="no\0pe")
        assert first.json()["score"] == 0 and first.json()["comment"] == "no\ufffdpe"
        again = (await say(request_id=answer["id"], score=0.75, task="sort")).json()
        assert (again["success"], again["score"], again["task"], again["comment"]) == (None, 0.75, "sort", "")
        await forget(app, 1)
        assert (await read(client, "/mine"))["feedback"]["score"] == 0.75
        assert (await read(client, ""))["data"][0]["feedback"]["task"] == "sort"
        assert (await say(success=True)).json()["task"] == "triage"
        refused = [
            await say(),
            await say(score=1.5),
            await say(success="yes"),
            await say(success=True, task="x" * 65),
            await say(success=True, comment="x" * 2001),
            await say("other", success=True),
            await say(request_id="nothing", success=True),
        ]
    said = [(each.status_code, each.json()["error"]["param"]) for each in refused]
    assert said == [
        (400, "success"), (400, "score"), (400, "success"), (400, "task"), (400, "comment"),
        (404, "request_id"), (404, "request_id"),
    ]  # fmt: skip


async def test_without_a_database_the_latest_are_known_and_nothing_can_be_said_of_them() -> None:
    app = make_state()
    async with in_process(app) as client:
        await client.post(CHAT, json=chat(max_tokens=1), headers={"x-request-id": "mine"})
        assert (await client.get("/v1/requests/mine")).json()["feedback"] is None
        assert (await client.get("/v1/requests")).json()["data"][0]["id"] == "mine"
        assert (await client.get("/v1/requests/other")).status_code == 404
        said = await client.post("/v1/feedback", json={"request_id": "mine", "success": True})
    assert (said.status_code, said.json()["error"]["code"]) == (503, "nothing_kept")
