"""/admin: the state as it is, requests that are ended, tenants that are changed; only for keys that may."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import httpx
import pytest

from tailrace.api.state import AppState
from tailrace.backends.fake import FakeBackend
from tailrace.control.limits.base import Account, Amounts
from tailrace.policy import KeyPolicy, Policy, Quota, TenantPolicy
from tests.serving import chat, in_process, live, make_state, parse_stream, patient, until

ADMIN = {"authorization": "Bearer root"}
USER = {"authorization": "Bearer alice"}


def hashed(key: str) -> str:
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


POLICY = Policy(
    tenants=(
        TenantPolicy("acme", weight=2.0, limits=Quota(concurrency=8), keys=(KeyPolicy("alice", hashed("alice")),)),
        TenantPolicy("ops", keys=(KeyPolicy("root", hashed("root"), scopes=("inference", "admin")),)),
    )
)


def made(**backend: Any) -> tuple[AppState, FakeBackend]:
    fake = FakeBackend(**({"manual": True, "max_sequences": 1} | backend))
    return make_state(fake, policy=POLICY), fake


async def finished(fake: FakeBackend, tasks: list[asyncio.Task[Any]]) -> None:
    def done() -> bool:
        fake.step()
        return all(task.done() for task in tasks)

    await until(done)


async def look(client: httpx.AsyncClient) -> dict[str, Any]:
    answer = await client.get("/admin/state", headers=ADMIN)
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


async def test_only_a_key_with_the_scope_opens_it() -> None:
    state, _ = made()
    async with in_process(state) as client:
        assert (await client.get("/admin/state")).status_code == 401
        assert (await client.get("/admin/state", headers=USER)).status_code == 403
        assert (await client.post("/admin/requests/x/cancel", headers=USER)).status_code == 403
        assert (await client.patch("/admin/tenants/acme", headers=USER, json={"weight": 9})).status_code == 403
        assert state.pipeline.tenants["acme"].weight == 2.0
        await look(client)


async def test_the_state_shows_who_runs_and_who_waits() -> None:
    state, fake = made()
    async with in_process(state) as client:
        tasks = [asyncio.create_task(client.post("/v1/chat/completions", headers=USER, json=chat(f"hello {i}")))
                 for i in range(3)]  # fmt: skip
        await until(lambda: state.pipeline.running == 1 and state.pipeline.waiting == 2)
        found = await look(client)
        assert found["model"] == "fake"
        assert found["requests"] == {"running": 1, "waiting": 2}
        (queue,) = found["queues"]
        assert (queue["class"], queue["tenant"], queue["requests"]) == ("interactive", "acme", 2)
        assert queue["prompt_tokens"] > 0
        (run,) = found["running"]
        assert (run["tenant"], run["phase"], run["generated"]) == ("acme", "prefill", 0)
        kv = found["kv"]
        assert kv["free"] + kv["cached"] + kv["referenced"] == kv["total"]
        acme = next(tenant for tenant in found["tenants"] if tenant["name"] == "acme")
        assert (acme["weight"], acme["running"], acme["waiting"]) == (2.0, 1, 2)
        assert acme["limits"] == {"concurrency": 8}
        assert found["tails"]["ttft_ms"] is None
        await finished(fake, tasks)
        found = await look(client)
        assert found["tails"]["ttft_ms"]["count"] == 3
        assert found["queues"] == found["running"] == []
        assert set(found["prediction"]) >= {"ttft", "tpot", "e2e"}


async def test_a_running_and_a_waiting_request_are_cancelled() -> None:
    state, _ = made()
    async with live(state) as base, patient(base_url=base) as client:
        body = chat("hello", stream=True, max_tokens=64)
        first = asyncio.create_task(client.post("/v1/chat/completions", headers=USER, json=body))
        await until(lambda: state.pipeline.running == 1)
        second = asyncio.create_task(client.post("/v1/chat/completions", headers=USER, json=chat("later")))
        await until(lambda: state.pipeline.waiting == 1)
        waiting = state.pipeline.waiting_runs()[0].id
        answer = await client.post(f"/admin/requests/{waiting}/cancel", headers=ADMIN)
        assert answer.json() == {"id": waiting, "cancelled": 1}
        refused = await second
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "cancelled_by_operator"
        assert refused.headers["x-should-retry"] == "false"  # else OpenAI's clients send it again at once
        (running,) = (await look(client))["running"]
        await client.post(f"/admin/requests/{running['id']}/cancel", headers=ADMIN)
        streamed = parse_stream((await first).text)
        assert streamed.events[-1]["error"]["code"] == "cancelled_by_operator"
        assert not streamed.done
        await until(lambda: state.pipeline.running == 0)
        gone = await client.post(f"/admin/requests/{running['id']}/cancel", headers=ADMIN)
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "request_not_found")


async def test_a_tenant_is_changed_from_the_next_request_on() -> None:
    state, _ = made(manual=False)
    async with in_process(state) as client:
        change = {"weight": 3, "limits": {"requests_per_minute": 1}}
        answer = await client.patch("/admin/tenants/acme", headers=ADMIN, json=change)
        assert answer.status_code == 200
        assert (answer.json()["weight"], answer.json()["limits"]["requests_per_minute"]) == (3, 1)
        assert answer.json()["limits"]["concurrency"] == 8  # what is not named stays
        statuses = [
            (await client.post("/v1/chat/completions", headers=USER, json=chat("hi"))).status_code for _ in range(2)
        ]
        assert statuses == [200, 429]


@pytest.mark.parametrize(
    ("name", "body", "status", "said"),
    [
        ("nobody", {"weight": 2}, 404, "There is no tenant nobody"),
        ("acme", {}, 400, "nothing is to be changed"),
        ("acme", {"weight": 0}, 400, "weight"),
        ("acme", {"weight": "heavy"}, 400, "weight"),
        ("acme", {"keys": []}, 400, "keys cannot be set"),
        ("acme", {"limits": {"requests": 5}}, 400, "requests_per_minute"),
        ("acme", {"limits": {"concurrency": -1}}, 400, "limits.concurrency"),
        ("acme", {"limits": {"max_output": 2**64 - 1}}, 400, "limits.max_output"),
        ("acme", {"limits": {"requests_per_minute": "9" * 23}}, 400, "limits.requests_per_minute"),
        ("acme", {"limits": {"device_seconds_per_minute": "9" * 400}}, 400, "limits.device_seconds_per_minute"),
        ("acme", {"limits": 5}, 400, "limits"),
        ("acme", [], 400, "JSON object"),
    ],
)
async def test_a_wrong_change_changes_nothing(name: str, body: Any, status: int, said: str) -> None:
    state, _ = made()
    before = list(state.pipeline.tenants)
    async with in_process(state) as client:
        answer = await client.patch(f"/admin/tenants/{name}", headers=ADMIN, json=body)
    assert answer.status_code == status
    assert said in answer.json()["error"]["message"]
    assert list(state.pipeline.tenants) == before


def send(client: httpx.AsyncClient, count: int, **fields: Any) -> list[asyncio.Task[httpx.Response]]:
    body = chat("hello", max_tokens=4, ignore_eos=True, **fields)
    return [asyncio.create_task(client.post("/v1/chat/completions", headers=USER, json=body)) for _ in range(count)]


async def held(state: AppState) -> Amounts:
    store = state.pipeline.limits.limiter.store
    return (await store.standing(Account("acme", Amounts())))[0]


async def test_a_part_of_a_name_cancels_nothing() -> None:
    state, fake = made()
    async with in_process(state) as client:
        tasks = send(client, 3)
        await until(lambda: state.pipeline.running == 1 and state.pipeline.waiting == 2)
        whole = state.pipeline.waiting_runs()[0].id
        for part in ("chatcmpl", whole[:-1], whole.partition("-")[2], f"{whole}-0"):
            answer = await client.post(f"/admin/requests/{part}/cancel", headers=ADMIN)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "request_not_found")
        await finished(fake, tasks)
    assert [task.result().status_code for task in tasks] == [200, 200, 200]


async def test_all_prompts_of_a_request_are_cancelled_by_its_name() -> None:
    state, _ = made()
    body = {"model": "fake", "prompt": ["one", "two", "three"], "max_tokens": 4}
    async with in_process(state) as client:
        task = asyncio.create_task(client.post("/v1/completions", headers=USER, json=body))
        await until(lambda: state.pipeline.running == 1 and state.pipeline.waiting == 2)
        name = state.pipeline.waiting_runs()[0].id.rpartition("-")[0]
        answer = await client.post(f"/admin/requests/{name}/cancel", headers=ADMIN)
        assert answer.json() == {"id": name, "cancelled": 3}
        assert (await task).json()["error"]["code"] == "cancelled_by_operator"
    assert (state.pipeline.running, state.pipeline.waiting) == (0, 0)
    assert await held(state) == Amounts()


@pytest.mark.parametrize(
    ("change", "running"),
    [
        ({"limits": {"concurrency": 3}}, 3),
        ({"limits": {"concurrency": 0}}, 4),
        ({"mode": "shadow"}, 4),
        ({"limits": {"output_tokens_per_minute": 10_000}}, 1),
    ],
)
async def test_who_waits_for_a_limit_is_let_in_when_it_is_raised(change: dict[str, Any], running: int) -> None:
    state, fake = made(max_sequences=8)
    async with in_process(state) as client:
        await client.patch("/admin/tenants/acme", headers=ADMIN, json={"limits": {"concurrency": 1}})
        tasks = send(client, 4)
        await until(lambda: state.pipeline.running == 1 and state.pipeline.waiting == 3)
        assert (await client.patch("/admin/tenants/acme", headers=ADMIN, json=change)).status_code == 200
        await until(lambda: state.pipeline.running == running)
        assert state.pipeline.waiting == 4 - running
        await finished(fake, tasks)
    assert [task.result().status_code for task in tasks] == [200] * 4
    assert await held(state) == Amounts()


async def test_who_waits_for_a_limit_that_is_now_too_small_for_it_is_told_so() -> None:
    state, fake = made(max_sequences=8)
    async with in_process(state) as client:
        await client.patch("/admin/tenants/acme", headers=ADMIN, json={"limits": {"concurrency": 2}})
        (first,) = send(client, 1)
        await until(lambda: state.pipeline.running == 1)
        (large,) = send(client, 1, n=2)
        await until(lambda: state.pipeline.waiting == 1)
        await client.patch("/admin/tenants/acme", headers=ADMIN, json={"limits": {"concurrency": 1}})
        refused = await large
        await finished(fake, [first])
    assert first.result().status_code == 200
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "exceeds_limit")
    assert refused.json()["error"]["detail"] == {"limit": "concurrency", "scope": "acme", "value": 2.0, "cap": 1.0}
    assert await held(state) == Amounts()
