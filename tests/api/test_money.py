"""Money over HTTP: what a request costs, what a spent budget answers, what a tenant may see of its own."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from tailrace.api.state import AppState
from tailrace.backends.fake import FakeBackend
from tailrace.clock import ManualClock
from tailrace.control.keys import digest
from tailrace.policy import KeyPolicy, Policy, Price, Prices, Quota, TenantPolicy
from tests.serving import chat, in_process, live, make_state, patient, until

CHAT = "/v1/chat/completions"
UNIT = 10**9
PRICES = Prices("EUR", {"default": Price(0, 100_000 * UNIT, 10_000 * UNIT, 1_000_000 * UNIT)})  # 1 EUR an output token
WALL = datetime(2026, 12, 31, 18, tzinfo=UTC).timestamp()


def serving(
    limits: Quota,
    key: Quota | None = None,
    mode: str = "strict",
    prices: Prices = PRICES,
    backend: FakeBackend | None = None,
) -> AppState:
    keys = (
        KeyPolicy("ci", f"sha256:s:{digest('acme', 's')}", limits=key or Quota()),
        KeyPolicy("boss", f"sha256:s:{digest('boss', 's')}", scopes=("inference", "admin")),
    )
    tenant = TenantPolicy("acme", limits=limits, keys=keys, mode=mode)
    return make_state(backend, policy=Policy((tenant,), prices=prices), clock=ManualClock(wall=WALL))


async def post(client: httpx.AsyncClient, key: str = "acme", **fields: object) -> httpx.Response:
    body = chat("x" * 100, **{"max_tokens": 4, **fields})
    return await client.post(CHAT, json=body, headers={"authorization": f"Bearer {key}"})


async def record(client: httpx.AsyncClient, answer: httpx.Response) -> dict[str, object]:
    found: dict[str, object] = (
        await client.get(f"/v1/requests/{answer.headers['x-request-id']}", headers={"authorization": "Bearer acme"})
    ).json()
    return found


def price(answer: httpx.Response) -> int:
    """Millionths, from what the answer says of its tokens."""
    usage = answer.json()["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    uncached = usage["prompt_tokens"] - cached
    return 100_000 * uncached + 10_000 * cached + 1_000_000 * int(usage["completion_tokens"])


async def test_a_requests_price_is_that_of_its_own_counts() -> None:
    async with in_process(serving(Quota())) as client:
        answers = [await post(client, n=n) for n in (1, 2)]
        assert answers[1].json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        for answer in answers:
            assert (await record(client, answer))["price"] == price(answer)


async def test_what_is_refused_costs_nothing() -> None:
    async with in_process(serving(Quota(max_context=50))) as client:
        answer = await post(client)
        assert answer.status_code == 400
        assert (await record(client, answer))["price"] == 0


async def test_a_spent_budget_says_what_was_spent_and_when_it_begins_anew() -> None:
    state = serving(Quota(money_per_day=20.5, money_per_month=100))
    async with in_process(state) as client:
        cost = price(await post(client))
        assert cost > 10_000_000
        while (answer := await post(client)).status_code == 200:
            cost += price(answer)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (429, "budget_exhausted")
        assert answer.headers["x-should-retry"] == "false"
        assert "retry-after" not in answer.headers
        assert error["detail"] == {
            "limit": "money_per_day", "scope": "acme", "value": cost / 1e6, "cap": 20.5, "spent": cost / 1e6,
            "held": 0.0, "unit": "EUR", "renews_at": "2027-01-01T00:00:00Z",
        }  # fmt: skip
        assert error["message"] == (
            f"The budget money_per_day of tenant acme is spent: {cost / 1e6:.6f}".rstrip("0")
            + " of 20.5 EUR; it begins anew at 2027-01-01T00:00:00Z"
        )
        assert isinstance(state.clock, ManualClock)
        state.clock.advance(6 * 3600.0)
        assert (await post(client)).status_code == 200


async def test_a_key_that_has_spent_its_own_budget_leaves_its_tenant_the_rest() -> None:
    async with in_process(serving(Quota(money_per_day=1000), key=Quota(money_per_month=1))) as client:
        assert (await post(client)).status_code == 200  # beyond its budget: the rest is debt
        refused = await post(client)
        assert (refused.status_code, refused.json()["error"]["detail"]["scope"]) == (429, "acme/ci")
        assert refused.json()["error"]["detail"]["renews_at"] == "2027-01-01T00:00:00Z"
        assert (await post(client, "boss")).status_code == 200


async def test_a_model_without_a_price_runs_on_a_spent_budget() -> None:
    prices = Prices("EUR", {"other": Price(output_million=UNIT)})
    async with in_process(serving(Quota(money_per_day=1e-6), prices=prices)) as client:
        assert [(await post(client)).status_code for _ in range(3)] == [200] * 3


async def test_shadow_mode_counts_money_and_refuses_nothing() -> None:
    state = serving(Quota(money_per_day=1), mode="shadow")
    async with in_process(state) as client:
        answers = [await post(client) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200] * 3
        said = await record(client, answers[-1])
        assert said["limit"] == {"limit": "money_per_day", "scope": "acme", "outcome": "exhausted", "enforced": False}
        assert state.metrics.registry.get_sample_value(
            "tailrace_shadow_refusals_total", {"limit": "money_per_day"}
        ) == 2.0  # fmt: skip


async def test_a_caller_sees_how_its_budgets_stand() -> None:
    state = serving(Quota(money_per_day=20.5, requests_per_minute=60), key=Quota(money_per_month=100, concurrency=2))
    async with in_process(state) as client:
        cost = price(await post(client)) / 1e6
        seen = (await client.get("/v1/budget", headers={"authorization": "Bearer acme"})).json()
        others = (await client.get("/v1/budget", headers={"authorization": "Bearer boss"})).json()
        admin = (await client.get("/admin/state", headers={"authorization": "Bearer boss"})).json()["budgets"]
        assert (await client.get("/v1/budget")).status_code == 401
    assert seen["currency"] == "EUR"
    rows = {(row["scope"], row["limit"]): row for row in seen["limits"]}
    day = rows["acme", "money_per_day"]
    assert day == {
        "limit": "money_per_day", "scope": "acme", "allowed": 20.5, "spent": cost, "held": 0.0, "unit": "EUR",
        "renews_at": "2027-01-01T00:00:00Z",
    }  # fmt: skip
    assert (rows["acme/ci", "money_per_month"]["spent"], rows["acme/ci", "money_per_month"]["allowed"]) == (cost, 100)
    assert (rows["acme", "requests_per_minute"]["spent"], rows["acme/ci", "concurrency"]["held"]) == (1, 0)
    assert rows["acme", "requests_per_minute"]["renews_at"] is None
    assert {row["scope"] for row in others["limits"]} == {"acme"}
    assert admin == [day]


@pytest.mark.parametrize("before", [Quota(), Quota(concurrency=8)], ids=["no limits", "other limits"])
async def test_a_new_budget_has_what_runs_already_from_its_beginning(before: Quota) -> None:
    backend = FakeBackend(manual=True)
    state = serving(before, backend=backend)
    async with in_process(state) as client:
        running = [asyncio.create_task(post(client, n=n)) for n in (1, 2)]
        await until(lambda: state.pipeline.running == 2)
        for _ in range(2):
            backend.step()
            await asyncio.sleep(0)
        boss = {"authorization": "Bearer boss"}
        changed = await client.patch("/admin/tenants/acme", headers=boss, json={"limits": {"money_per_day": 500}})
        assert changed.status_code == 200
        while not all(each.done() for each in running):
            backend.step()
            await asyncio.sleep(0)
        cost = sum(price(each.result()) for each in running) / 1e6
        rows = (await client.get("/v1/budget", headers={"authorization": "Bearer acme"})).json()["limits"]
        (day,) = [row for row in rows if row["limit"] == "money_per_day"]
        assert (day["spent"], day["held"]) == (pytest.approx(cost, abs=1e-9), 0)


async def test_budget_ledger_and_answers_agree_after_a_burst_with_disconnects(tmp_path: Path) -> None:
    """120 at once, of which every fifth leaves in the middle: what is spent is the sum of all prices, and within the
    budget."""
    keys = (KeyPolicy("ci", f"sha256:s:{digest('acme', 's')}"),)
    tenant = TenantPolicy("acme", limits=Quota(money_per_day=500), keys=keys, max_waiting_requests=300)
    backend = FakeBackend(max_sequences=8, step_seconds=0.001)
    database = f"sqlite:///{tmp_path / 'kept.db'}"
    state = make_state(backend, policy=Policy((tenant,), prices=PRICES), database=database)
    state.keeping.start()
    state.ledger.start()
    answered: list[int] = []

    async def one(number: int, client: httpx.AsyncClient) -> int:
        if number % 5:
            answer = await post(client, max_tokens=1 + number % 7)
            answered.extend([price(answer)] if answer.status_code == 200 else [])
            return answer.status_code
        sent = {"authorization": "Bearer acme"}
        body = chat("x" * 100, max_tokens=60, stream=True)
        async with client.stream("POST", CHAT, json=body, headers=sent) as stream:
            async for _ in stream.aiter_bytes():
                break
        return stream.status_code

    async with live(state) as url, patient(base_url=url) as client:
        codes = await asyncio.gather(*(one(number, client) for number in range(120)))
        await until(lambda: not (state.pipeline.running or state.pipeline.waiting))
        seen = (await client.get("/v1/budget", headers={"authorization": "Bearer acme"})).json()["limits"][0]
        last = (await post(client, max_tokens=1)).status_code
    await until(lambda: state.ledger.written == 121)  # its end waits for a slow database a few seconds only
    await state.close()
    kept = await state.keeping.needed()
    rows = await kept.ledger.latest("acme", 1000)
    assert len(rows) == 121
    charged = sum(row["price"] for row in rows[1:]) / 1e6
    assert (seen["spent"], seen["held"]) == (pytest.approx(charged, abs=1e-9), 0)
    assert {row["price"] for row in rows if row["status"] == 429} <= {0}
    assert set(codes) == {200, 429}  # the budget was spent on the way
    assert sum(answered) / 1e6 <= charged
    assert last == 429 and charged >= 500  # and nobody was refused before it was
    await state.keeping.close()
