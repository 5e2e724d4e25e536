"""Tenants over HTTP: who is who, what each may, what a limit answers, and what is charged."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tailrace.api.state import AppState
from tailrace.backends.fake import FakeBackend
from tailrace.clock import ManualClock
from tailrace.control.keys import digest
from tailrace.control.limits.base import Account, Amounts, caps
from tailrace.policy import ClassPolicies, ClassPolicy, ClassRule, KeyPolicy, Policy, Quota, RequestClass, TenantPolicy
from tailrace.types import Outlook, StepCosts
from tests.serving import chat, in_process, live, make_state, parse_stream, patient, until

CHAT = "/v1/chat/completions"


def tenant(name: str, **fields: Any) -> TenantPolicy:
    """With a key that is called like it, and an administrator's."""
    keys = (
        KeyPolicy("k", f"sha256:s:{digest(name, 's')}", limits=fields.pop("key_limits", Quota())),
        KeyPolicy("boss", f"sha256:s:{digest(name + '-boss', 's')}", scopes=("admin",)),
    )
    return TenantPolicy(name, keys=keys, **fields)


def state(*tenants: TenantPolicy, backend: FakeBackend | None = None, **policy: Any) -> AppState:
    return make_state(backend, policy=Policy(tenants, **policy))


def still(*tenants: TenantPolicy, backend: FakeBackend | None = None) -> AppState:
    """No time passes, so that nothing is forgiven."""
    return make_state(backend, policy=Policy(tenants), clock=ManualClock())


async def post(
    client: httpx.AsyncClient, key: str, headers: dict[str, str] | None = None, **fields: Any
) -> httpx.Response:
    sent = {"authorization": f"Bearer {key}", **(headers or {})}
    return await client.post(CHAT, json=chat(**{"max_tokens": 4, **fields}), headers=sent)


async def standing(state: AppState, name: str, quota: Quota) -> tuple[Amounts, tuple[float, ...]]:
    return await state.pipeline.limits.limiter.store.standing(Account(name, caps(quota)))


async def test_a_tenant_comes_from_the_key_and_answers_say_so() -> None:
    async with in_process(state(tenant("acme"), tenant("other"))) as client:
        answer = await post(client, "acme", {"x-tailrace-tenant": "other"})
        stream = await post(client, "other", stream=True)
        boss = await post(client, "acme-boss")
    assert (answer.status_code, answer.headers["x-tailrace-tenant"]) == (200, "acme")
    assert (answer.headers["x-tailrace-class"], answer.headers["x-tailrace-length"]) == ("interactive", "<256")
    assert float(answer.headers["x-tailrace-queue-ms"]) == pytest.approx(
        answer.json()["timings"]["queue_ms"], abs=0.001
    )
    assert stream.headers["x-tailrace-tenant"] == "other"
    assert (boss.status_code, boss.json()["error"]["code"]) == (403, "missing_scope")


async def test_tenants_do_not_find_each_others_prompts_in_the_cache() -> None:
    async with in_process(state(tenant("acme"), tenant("other"))) as client:
        answers = [await post(client, key, text="x" * 100) for key in ("acme", "acme", "other")]
    assert [a.json()["timings"]["cached_tokens"] for a in answers] == [0, 112, 0]


async def test_requests_per_minute() -> None:
    app = still(tenant("acme", limits=Quota(requests_per_minute=3)), tenant("other"))
    async with in_process(app) as client:
        answers = [await post(client, "acme", n=2, stream=i == 3) for i in range(5)]
        assert (await post(client, "other")).status_code == 200
    assert [a.status_code for a in answers] == [200, 200, 200, 429, 429]  # a stream's refusal has its own status
    error = answers[3].json()["error"]
    assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
    assert (error["detail"]["limit"], error["detail"]["scope"], error["detail"]["cap"]) == (
        "requests_per_minute",
        "acme",
        3,
    )
    waits = [a.json()["error"]["retry_after_ms"] for a in answers[3:]]
    assert waits == [20_000, 40_000]  # each is told a place of its own
    assert [int(a.headers["retry-after"]) for a in answers[3:]] == [-(-ms // 1000) for ms in waits]


async def test_200_at_once_on_a_limit_of_50() -> None:
    app = still(tenant("acme", limits=Quota(requests_per_minute=50)), backend=FakeBackend(max_sequences=8))
    async with in_process(app) as client:
        answers = await asyncio.gather(*(post(client, "acme") for _ in range(200)))
    codes = [a.status_code for a in answers]
    assert (codes.count(200), codes.count(429)) == (50, 150)
    held, level = await standing(app, "acme", Quota(requests_per_minute=50))
    assert held == Amounts()
    assert level[0] == 50


async def test_prompts_and_answers_are_charged_as_counted() -> None:
    quota = Quota(prompt_tokens_per_minute=300, output_tokens_per_minute=300, concurrency=8)
    app = still(tenant("acme", limits=quota))
    async with in_process(app) as client:
        usage = (await post(client, "acme", n=4, ignore_eos=True, max_tokens=30)).json()["usage"]
    held, level = await standing(app, "acme", quota)
    assert held == Amounts()
    assert usage["completion_tokens"] == 120
    assert level[1:3] == (usage["prompt_tokens"], 120)


async def test_more_sequences_than_may_run_wait_and_then_run() -> None:
    backend = FakeBackend(max_sequences=16, manual=True)
    app = state(tenant("acme", limits=Quota(concurrency=4)), backend=backend)
    async with in_process(app) as client:
        tasks = [asyncio.create_task(post(client, "acme", n=2, ignore_eos=True)) for _ in range(5)]
        await until(lambda: (app.pipeline.running, app.pipeline.waiting) == (2, 3))
        assert len(backend.started_ids) == 2
        for started in (4, 5):
            backend.step(4)
            await until(lambda started=started: len(backend.started_ids) == started)
        backend.step(4)
        answers = await asyncio.gather(*tasks)
        never = await post(client, "acme", n=5)
    assert [a.status_code for a in answers] == [200] * 5
    assert answers[4].json()["timings"]["queue_ms"] > 0
    assert (never.status_code, never.json()["error"]["code"]) == (400, "exceeds_limit")


async def test_a_key_has_limits_beside_its_tenants() -> None:
    app = still(tenant("acme", key_limits=Quota(requests_per_minute=1)))
    async with in_process(app) as client:
        answers = [await post(client, "acme") for _ in range(2)]
    assert [a.status_code for a in answers] == [200, 429]
    assert answers[1].json()["error"]["detail"]["scope"] == "acme/k"


async def test_a_spent_budget_is_not_to_be_tried_again() -> None:
    quota = Quota(budget_device_seconds=1e-6)
    app = state(tenant("acme", limits=quota))
    store = app.pipeline.limits.limiter.store
    from tailrace.control.limits.base import Change

    await store.change("earlier", (Account("acme", caps(quota)),), Change(Amounts(budget_us=5), done=True))
    app.pipeline.dispatch.estimator.estimate = _costly(app.pipeline.dispatch.estimator.estimate)  # type: ignore[method-assign]
    async with in_process(app) as client:
        answer = await post(client, "acme")
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "budget_exhausted")
    assert answer.headers["x-should-retry"] == "false"
    assert "retry-after" not in answer.headers


def _costly(estimate: Any) -> Any:
    from dataclasses import replace

    return lambda *args: replace(estimate(*args), prefill_seconds=0.5)


async def test_shadow_counts_and_refuses_nothing() -> None:
    app = still(tenant("acme", mode="shadow", limits=Quota(requests_per_minute=1)))
    async with in_process(app) as client:
        answers = [await post(client, "acme") for _ in range(3)]
        record = (await client.get(f"/v1/requests/{answers[2].headers['x-request-id']}", headers=bearer("acme"))).json()
    assert [a.status_code for a in answers] == [200] * 3
    assert (
        app.metrics.registry.get_sample_value("tailrace_shadow_refusals_total", {"limit": "requests_per_minute"}) == 2
    )
    assert record["limit"] == {
        "limit": "requests_per_minute", "scope": "acme", "outcome": "over", "enforced": False,
    }  # fmt: skip


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_what_a_tenant_may_not_use() -> None:
    app = state(
        tenant("short", classes=("interactive",), limits=Quota(max_context=200, max_output=5)),
        tenant("late", classes=("background",)),
        tenant("elsewhere", models=("another",)),
        rules=(ClassRule(RequestClass.LONG, tenant="short", from_tokens=100),),
    )
    async with in_process(app) as client:
        long = await post(client, "short", text="x" * 120)
        longer = await post(client, "short", text="x" * 250)
        lowered = await post(client, "short", max_tokens=50, ignore_eos=True)
        late = await post(client, "late")
        missing = await post(client, "elsewhere")
        listed = (await client.get("/v1/models", headers=bearer("elsewhere"))).json()["data"]
    assert (long.status_code, long.json()["error"]["code"]) == (403, "class_not_allowed")
    assert (longer.status_code, longer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert lowered.json()["usage"]["completion_tokens"] == 5
    assert late.headers["x-tailrace-class"] == "background"
    assert (missing.status_code, listed) == (404, [])


@pytest.mark.parametrize("value", ["0", "-5", "soon", "1.5", "9999999999", ""])
async def test_a_deadline_that_is_none_is_refused(value: str) -> None:
    async with in_process(make_state()) as client:
        answer = await client.post(CHAT, json=chat(), headers={"x-tailrace-deadline-ms": value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "x-tailrace-deadline-ms")


async def test_a_deadline_that_cannot_be_met_is_told_at_once() -> None:
    app = make_state(backend := FakeBackend(), clock=ManualClock())
    _expect(app, ttft=3.0)
    async with in_process(app) as client:
        late = await client.post(CHAT, json=chat(stream=True), headers={"x-tailrace-deadline-ms": "2000"})
        fine = await client.post(CHAT, json=chat(max_tokens=2), headers={"x-tailrace-deadline-ms": "4000"})
    assert (late.status_code, late.json()["error"]["code"]) == (503, "deadline_unattainable")
    detail = late.json()["error"]["detail"]
    assert (detail["value"], detail["limit"]) == (3.0, 2.0)
    assert int(late.headers["retry-after"]) >= 1
    assert (fine.status_code, fine.headers["x-tailrace-predicted-ttft-ms"]) == (200, "3000")
    assert len(backend.prompts) == 1


async def test_a_class_has_a_deadline_and_background_is_offered_as_a_job() -> None:
    classes = ClassPolicies(interactive=ClassPolicy(ttft=1.0), background=ClassPolicy(ttft=1.0, as_job=True))
    app = make_state(policy=Policy(classes=classes))
    _expect(app, ttft=3.0)
    async with in_process(app) as client:
        now = await client.post(CHAT, json=chat())
        later = await client.post(CHAT, json=chat(service_tier="flex"))
    assert (now.status_code, now.json()["error"]["code"]) == (503, "deadline_unattainable")
    assert "as_job" not in now.json()["error"]["detail"]
    assert (later.status_code, later.json()["error"]["detail"]["as_job"]) == (503, True)


def _expect(app: AppState, ttft: float) -> None:
    """Let every prediction say this."""
    foresight = app.pipeline.dispatch.foresight
    predict = foresight.predict

    def predicted(*asked: Any) -> Any:
        made = predict(*asked)
        return replace(made, ttft=ttft, raw=(made.raw[0], ttft))

    foresight.predict = predicted  # type: ignore[method-assign]
    foresight.errors["ttft"].right = lambda kind, predicted, part=0.5: predicted  # type: ignore[method-assign]


async def started(client: httpx.AsyncClient, backend: FakeBackend) -> asyncio.Task[httpx.Response]:
    """A request that takes a slot, for two steps."""
    task = asyncio.create_task(client.post(CHAT, json=chat(max_tokens=2)))
    await until(lambda: len(backend.started_ids) == 1)
    return task


async def test_who_waits_longer_than_its_class_may_is_told() -> None:
    backend = FakeBackend(max_sequences=1, manual=True)
    app = make_state(backend, policy=Policy(classes=ClassPolicies(interactive=ClassPolicy(queue_deadline=0.05))))
    async with in_process(app) as client:
        first = await started(client, backend)
        late = await client.post(CHAT, json=chat())
        backend.step(2)
        assert (await first).status_code == 200
    assert (late.status_code, late.json()["error"]["code"]) == (503, "queue_deadline")
    assert (app.pipeline.running, app.pipeline.waiting) == (0, 0)


class Slowing(FakeBackend):
    """Its steps become as long as `pace` says."""

    pace = 1e-3

    def outlook(self) -> Outlook:
        return replace(super().outlook(), costs=StepCosts(self.pace, 0.0, 0.0, 0.0, 0.0))


async def test_who_will_not_start_in_time_any_more_is_told_before_its_time_is_over() -> None:
    backend = Slowing(max_sequences=1, manual=True)
    app = make_state(backend, policy=Policy(classes=ClassPolicies(interactive=ClassPolicy(queue_deadline=2.0))))
    async with in_process(app) as client:
        first = await started(client, backend)
        late = asyncio.create_task(client.post(CHAT, json=chat()))
        await until(lambda: app.pipeline.waiting == 1)
        backend.pace = 100.0
        answer = await late
        backend.step(2)
        assert (await first).status_code == 200
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (503, "queue_too_long")
    assert error["detail"]["scope"] == "class interactive"
    assert error["detail"]["limit"] == 2.0
    assert error["detail"]["value"] > 100.0


async def test_a_tenant_reads_why_its_own_request_waited() -> None:
    app = state(tenant("acme"), tenant("other"))
    async with in_process(app) as client:
        answer = await post(client, "acme", {"x-request-id": "mine"})
        mine = await client.get("/v1/requests/mine", headers=bearer("acme"))
        theirs = await client.get("/v1/requests/mine", headers=bearer("other"))
    record = mine.json()
    assert (record["id"], record["outcome"], record["class"], record["class_reason"]) == (
        "mine", "ok", "interactive", "short",
    )  # fmt: skip
    assert record["admission"] == {"decision": "admit", "reason": "starts_now"}
    assert sum(record["phases_ms"].values()) == pytest.approx(record["total_ms"])
    assert record["completion_tokens"] == answer.json()["usage"]["completion_tokens"]
    assert (theirs.status_code, theirs.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize("stream", [True, False])
async def test_who_hangs_up_is_charged_for_what_was_made(stream: bool) -> None:
    quota = Quota(output_tokens_per_minute=6_000_000, concurrency=2)
    backend = FakeBackend(max_sequences=4, manual=True)
    app = state(tenant("acme", limits=quota), backend=backend)
    async with live(app) as base, patient() as client:
        body, headers = chat(max_tokens=100, ignore_eos=True, stream=stream), bearer("acme")
        tasks = [asyncio.create_task(client.post(base + CHAT, json=body, headers=headers)) for _ in range(3)]
        await until(lambda: len(backend.started_ids) == 2)
        backend.step(3)
        runs = list(app.pipeline.dispatch.running.values())
        await until(lambda: all(run.generated == 3 for run in runs))
        spent = [run.spent().output_tokens for run in runs]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: app.pipeline.running == app.pipeline.waiting == 0)
    held, _ = await standing(app, "acme", quota)
    assert spent == [3, 3]
    assert held == Amounts()
    assert len(backend.prompts) == 2  # the third waited for its tenant's slots, and never started


async def test_a_stream_that_waited_for_limits_streams() -> None:
    app = state(tenant("acme", limits=Quota(concurrency=1)), backend=FakeBackend(step_seconds=0.001))
    async with in_process(app) as client:
        answers = await asyncio.gather(*(post(client, "acme", stream=True) for _ in range(6)))
    assert all(parse_stream(a.text).done for a in answers)
