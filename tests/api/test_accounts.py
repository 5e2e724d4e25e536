"""Tenants and keys over the admin API: made, changed, rotated and taken away, kept, shared, and logged."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest

from tailrace.api.state import AppState
from tailrace.backends.fake import FakeBackend
from tailrace.clock import ManualClock
from tailrace.control.accounts.edits import CHANGEABLE
from tailrace.control.keys import hmac
from tailrace.errors import Unavailable
from tailrace.policy import KeyPolicy, Policy, Price, Prices, Quota, TenantPolicy
from tests.api.test_operator import ADMIN, hashed
from tests.serving import chat, in_process, live, make_state, patient, until

CHAT = "/v1/chat/completions"
POLICY = Policy(
    tenants=(
        TenantPolicy("acme", weight=2.0, limits=Quota(concurrency=8), keys=(KeyPolicy("alice", hashed("alice")),)),
        TenantPolicy("ops", keys=(KeyPolicy("root", hashed("root"), scopes=("inference", "admin")),)),
    )
)


def made(**options: Any) -> AppState:
    return make_state(policy=POLICY, **options)


async def begun(state: AppState) -> AppState:
    """With what is kept read."""
    state.keeping.start()
    state.accounts.start()
    await until(lambda: state.pipeline.tenants.complete)
    return state


async def ended(*states: AppState) -> None:
    for state in states:
        await state.close()
        await state.keeping.close()


async def ask(client: httpx.AsyncClient, key: str) -> int:
    answer = await client.post(CHAT, json=chat(max_tokens=2), headers={"authorization": f"Bearer {key}"})
    return answer.status_code


async def do(client: httpx.AsyncClient, method: str, path: str, body: object = None, status: int = 200) -> Any:
    answer = await client.request(method, f"/admin{path}", json=body, headers=ADMIN)
    assert answer.status_code == status, answer.text
    return answer.json()


async def log(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await do(client, "GET", "/audit"))["data"]
    return found


async def test_a_tenant_and_its_key_from_making_to_deleting() -> None:
    state = made()
    async with in_process(state) as client:
        tenant = await do(client, "POST", "/tenants", {"name": "new", "limits": {"concurrency": 2}}, 201)
        assert (tenant["source"], tenant["limits"], tenant["keys"]) == ("admin", {"concurrency": 2}, [])
        assert tenant["kept"] is False
        key = await do(client, "POST", "/tenants/new/keys", {"name": "ci", "limits": {"max_output": 9}}, 201)
        assert key.keys() == {"tenant", "name", "key", "kept"}
        assert await ask(client, key["key"]) == 200
        assert state.pipeline.tenants.key_limits("new", "ci") == Quota(max_output=9)
        listed = (await do(client, "GET", "/tenants"))["data"]
        assert [one["name"] for one in listed] == ["acme", "ops", "new", "default"]
        shown = (await do(client, "GET", "/tenants/new"))["keys"]
        assert shown == [
            {"name": "ci", "source": "admin", "scopes": ["inference"], "limits": {"max_output": 9}, "expires": None}
            | {"created": shown[0]["created"]}
        ]
        assert (await do(client, "DELETE", "/tenants/new"))["deleted"]
        assert await ask(client, key["key"]) == 401
        await do(client, "GET", "/tenants/new", status=404)
        # Made anew it has nothing of what it had.
        again = await do(client, "POST", "/tenants", {"name": "new"}, 201)
        assert (again["limits"], again["keys"]) == ({}, [])


async def test_what_an_operator_says_wins_field_by_field() -> None:
    state = made()
    async with in_process(state) as client:
        await do(client, "PATCH", "/tenants/acme", {"weight": 5})
        found = await do(client, "PATCH", "/tenants/acme", {"limits": {"requests_per_minute": 9}})
        assert (found["source"], found["changed"], found["weight"]) == ("file", ["limits", "weight"], 5)
        assert found["limits"] == {"concurrency": 8, "requests_per_minute": 9}
        assert [key["source"] for key in found["keys"]] == ["file"]
        await do(client, "DELETE", "/tenants/acme")
        assert await ask(client, "alice") == 401
        await do(client, "POST", "/tenants", {"name": "acme"}, 201)
        assert await ask(client, "alice") == 200  # the file's key: nobody has said a word on it


async def test_a_key_is_rotated_with_an_overlap_and_revoked() -> None:
    clock = ManualClock()
    state = made(clock=clock, backend=FakeBackend(clock=clock))
    async with in_process(state) as client:
        second = await do(client, "POST", "/tenants/acme/keys/alice/rotate", {"overlap_s": 60}, 201)
        assert [await ask(client, key) for key in ("alice", second["key"])] == [200, 200]
        clock.advance(59)
        assert await ask(client, "alice") == 200
        clock.advance(2)
        assert [await ask(client, key) for key in ("alice", second["key"])] == [401, 200]
        third = await do(client, "POST", "/tenants/acme/keys/alice/rotate", {}, 201)
        assert [await ask(client, key) for key in (second["key"], third["key"])] == [401, 200]
        assert (await do(client, "DELETE", "/tenants/acme/keys/alice"))["revoked"]
        assert [await ask(client, key) for key in ("alice", second["key"], third["key"])] == [401] * 3
        await do(client, "DELETE", "/tenants/acme/keys/alice", status=404)
        fresh = await do(client, "POST", "/tenants/acme/keys", {"name": "alice"}, 201)
        assert await ask(client, fresh["key"]) == 200


async def test_a_key_expires_and_has_scopes() -> None:
    clock = ManualClock()
    state = made(clock=clock, backend=FakeBackend(clock=clock))
    async with in_process(state) as client:
        body = {"name": "boss", "scopes": ["admin"], "expires": "2099-01-01"}
        key = (await do(client, "POST", "/tenants/acme/keys", body, 201))["key"]
        boss = {"authorization": f"Bearer {key}"}
        assert (await client.get("/admin/tenants", headers=boss)).status_code == 200
        assert await ask(client, key) == 403
        clock.advance(4e9)
        assert (await client.get("/admin/tenants", headers=boss)).json()["error"]["code"] == "expired_api_key"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/tenants", {"name": "acme"}, 409, "tenant_exists"),
        ("POST", "/tenants", {"name": "default"}, 409, "tenant_exists"),
        ("POST", "/tenants", {"name": "../x"}, 400, None),
        ("POST", "/tenants", {"name": 7}, 400, None),
        ("POST", "/tenants", {}, 400, None),
        ("POST", "/tenants", {"name": "x", "keys": []}, 400, None),
        ("POST", "/tenants", {"name": "x", "limits": {"concurrency": -1}}, 400, None),
        ("POST", "/tenants", {"name": "x", "limits": []}, 400, None),
        ("POST", "/tenants", {"name": "x", "limits": {"money_per_day": 1}}, 400, None),
        ("POST", "/tenants", [], 400, "invalid_json"),
        ("PATCH", "/tenants/acme", {}, 400, None),
        ("PATCH", "/tenants/acme", {"name": "other"}, 400, None),
        ("PATCH", "/tenants/acme", {"weight": 0}, 400, None),
        ("PATCH", "/tenants/nobody", {"weight": 1}, 404, "tenant_not_found"),
        ("DELETE", "/tenants/nobody", None, 404, "tenant_not_found"),
        ("DELETE", "/tenants/default", None, 400, None),
        ("POST", "/tenants/acme/keys", {"name": "alice"}, 409, "key_exists"),
        ("POST", "/tenants/acme/keys", {"name": "x", "hash": "sha256:00"}, 400, None),
        ("POST", "/tenants/acme/keys", {"name": "x", "scopes": ["root"]}, 400, None),
        ("POST", "/tenants/acme/keys", {"name": "x", "scopes": []}, 400, None),
        ("POST", "/tenants/acme/keys", {"name": "x", "expires": "soon"}, 400, None),
        ("POST", "/tenants/acme/keys", {"name": "x", "expires": "2001-01-01"}, 400, None),
        ("POST", "/tenants/nobody/keys", {"name": "x"}, 404, "tenant_not_found"),
        ("POST", "/tenants/acme/keys/x/rotate", {}, 404, "key_not_found"),
        ("POST", "/tenants/acme/keys/alice/rotate", {"overlap_s": -1}, 400, None),
        ("POST", "/tenants/acme/keys/alice/rotate", {"overlap_s": "1h"}, 400, None),
        ("POST", "/tenants/acme/keys/alice/rotate", {"overlap": 1}, 400, None),
        ("DELETE", "/tenants/acme/keys/x", None, 404, "key_not_found"),
        ("GET", "/audit?limit=0", None, 400, None),
        ("GET", "/audit?limit=9999", None, 400, None),
        ("GET", "/audit?before=x", None, 400, None),
        ("GET", "/audit?before=99999999999999999999", None, 400, None),
        ("GET", "/queue?limit=-1", None, 400, None),
    ],
)
async def test_what_is_refused_changes_nothing(
    method: str, path: str, body: object, status: int, code: str | None
) -> None:
    state = made()
    before = state.config
    async with in_process(state) as client:
        error = (await do(client, method, path, body, status))["error"]
        assert error["code"] == code
        assert state.config is before
        if method != "GET":
            (row,) = await log(client)
            assert (row["status"], row["key"], row["before"], row["after"]) == (status, "root", None, None)


WRONG = {
    "weight": ("2", True, None, [2], {}),
    "priority": (1, None, True, ["high"]),
    "classes": ("interactive", None, [1], {}),
    "models": ("fake", None, [True], {}),
    "mode": (0, None, False, {}),
    "shared_cache": (0, 1, "true", "no", None, []),
    "max_waiting_requests": ("9", True, 1.5, None, []),
    "max_waiting_tokens": ("9", False, 0.5, None, {}),
    "limits": (0, "x", None, [], {"concurrency": "4"}, {"concurrency": True}, {"requests_per_minute": None}),
}


def test_every_field_that_can_be_changed_has_wrong_kinds() -> None:
    assert tuple(WRONG) == CHANGEABLE


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in WRONG.items() for value in values])
async def test_a_value_of_another_kind_is_refused_by_its_name(field: str, value: object) -> None:
    async with in_process(made()) as client:
        error = (await do(client, "PATCH", "/tenants/acme", {field: value}, 400))["error"]
        assert error["param"].startswith(field)


async def test_a_budget_of_money_needs_prices() -> None:
    priced = Policy(POLICY.tenants, prices=Prices(models={"default": Price(output_million=1)}))
    async with in_process(make_state(policy=priced)) as client:
        found = await do(client, "PATCH", "/tenants/acme", {"limits": {"money_per_day": 1.5}})
        assert found["limits"]["money_per_day"] == 1.5


async def test_the_log_says_who_did_what_and_who_was_turned_away() -> None:
    state = made()
    async with in_process(state) as client:
        headers = {**ADMIN, "x-request-id": "mine"}
        await client.patch("/admin/tenants/acme", headers=headers, json={"weight": 7})
        await client.patch("/admin/tenants/acme", headers={"authorization": "Bearer alice"}, json={"weight": 9})
        await client.get("/admin/tenants")
        await do(client, "POST", "/requests/x/cancel", status=404)
        rows = await log(client)
    assert [(row["action"], row["target"], row["status"], row["error"]) for row in rows] == [
        ("cancel", "x", 404, "request_not_found"),
        ("GET /admin/tenants", "", 401, "missing_api_key"),
        ("PATCH /admin/tenants/acme", "", 403, "missing_scope"),
        ("tenant.change", "acme", 200, ""),
    ]
    assert [(row["tenant"], row["key"]) for row in rows] == [
        ("ops", "root"),
        ("", ""),
        ("acme", "alice"),
        ("ops", "root"),
    ]
    change = rows[-1]
    assert (change["before"]["weight"], change["after"]["weight"], change["request_id"]) == (2.0, 7.0, "mine")
    assert state.pipeline.tenants["acme"].weight == 7


async def test_a_flood_of_refusals_does_not_fill_the_log() -> None:
    state = made(clock=ManualClock())
    async with in_process(state) as client:
        for _ in range(200):
            await client.get("/admin/state")
        assert len((await do(client, "GET", "/audit?limit=500"))["data"]) == 60


async def test_secrets_are_nowhere_but_in_the_one_answer(caplog: pytest.LogCaptureFixture, tmp_path: Any) -> None:
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "kept.db"
    state = await begun(made(database=f"sqlite:///{path}"))
    async with in_process(state) as client:
        key = (await do(client, "POST", "/tenants/acme/keys", {"name": "ci"}, 201))["key"]
        other = (await do(client, "POST", "/tenants/acme/keys/ci/rotate", {"overlap_s": 9}, 201))["key"]
        seen = [caplog.text, str(state.settings.config), repr(state.settings.overlay)]
        for route in (
            "/admin/tenants",
            "/admin/tenants/acme",
            "/admin/audit",
            "/admin/config",
            "/admin/state",
            "/metrics",
        ):
            answer = await client.get(route, headers=ADMIN)
            assert answer.status_code == 200
            seen.append(answer.text)
            assert "sha256" not in answer.text
        wrong = await client.get("/admin/state", headers={"authorization": f"Bearer {key}x"})
        seen.append(wrong.text)
    await ended(state)
    seen += [file.read_bytes().decode("latin-1") for file in tmp_path.iterdir()]
    for secret in (key, other, "Bearer root"):
        assert not [text for text in seen if secret in text]


async def test_a_key_is_compared_with_every_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    real = hmac.compare_digest

    def compare(mine: str, theirs: str) -> bool:
        nonlocal compared
        compared += 1
        return real(mine, theirs)

    state = made()
    async with in_process(state) as client:
        key = (await do(client, "POST", "/tenants/acme/keys", {"name": "ci"}, 201))["key"]
        monkeypatch.setattr("tailrace.control.keys.hmac.compare_digest", compare)
        counts = []
        for tried in (key, "alice", "root", "nobody"):
            compared = 0
            await ask(client, tried)
            counts.append(compared)
    assert counts == [3] * 4


async def test_changes_outlive_the_server(url: str) -> None:
    first = await begun(made(database=url))
    async with in_process(first) as client:
        answer = await do(client, "POST", "/tenants", {"name": "new", "weight": 3}, 201)
        assert answer["kept"] is True
        key = (await do(client, "POST", "/tenants/new/keys", {"name": "ci"}, 201))["key"]
        await do(client, "DELETE", "/tenants/acme/keys/alice")
    await ended(first)
    second = await begun(made(database=url))
    async with in_process(second) as client:
        assert [await ask(client, each) for each in (key, "alice", "root")] == [200, 401, 200]
        assert second.pipeline.tenants["new"].weight == 3
        rows = await log(client)
        assert [row["action"] for row in rows] == ["key.revoke", "key.create", "tenant.create"]
        assert [row["number"] for row in rows] == [3, 2, 1]
        older = (await do(client, "GET", "/audit?before=2&limit=1"))["data"]
        assert [row["number"] for row in older] == [1]
    await ended(second)


async def test_rows_of_the_log_are_forgotten_with_those_of_the_ledger(url: str) -> None:
    first = await begun(made(database=url, clock=ManualClock(wall=0.0)))
    async with in_process(first) as client:
        await do(client, "PATCH", "/tenants/acme", {"weight": 3})
    await ended(first)
    late = await begun(made(database=url, clock=ManualClock(wall=first.config.data.ledger_retention + 1)))
    assert late.keeping.now is not None
    while await late.keeping.now.accounts.audit(10):  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0.001)
    async with in_process(late) as client:
        await do(client, "PATCH", "/tenants/acme", {"weight": 4})
        assert [row["after"]["weight"] for row in await log(client)] == [4.0]
    await ended(late)


async def test_servers_on_one_database_share_changes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a real server on a port; both change things at the same time."""
    monkeypatch.setattr("tailrace.control.accounts.accounts.EVERY", 0.05)
    one, two = await begun(made(database=url)), await begun(made(database=url))
    async with live(one) as a, live(two) as b, patient() as client:

        async def create(base: str, number: int) -> str:
            body = {"name": f"k{number}"}
            answer = await client.post(f"{base}/admin/tenants/acme/keys", headers=ADMIN, json=body)
            assert answer.status_code == 201
            key: str = answer.json()["key"]
            return key

        made_keys = await asyncio.gather(*(create(base, n) for n, base in enumerate([a, b] * 4)))
        await until(lambda: one.settings.overlay == two.settings.overlay and len(one.settings.overlay.keys) == 8)

        async def used(base: str, key: str) -> int:
            answer = await client.post(base + CHAT, json=chat(max_tokens=1), headers={"authorization": f"Bearer {key}"})
            return answer.status_code

        assert {await used(base, key) for base in (a, b) for key in made_keys} == {200}
        answer = await client.delete(f"{a}/admin/tenants/acme/keys/k0", headers=ADMIN)
        assert answer.status_code == 200
        assert await used(a, made_keys[0]) == 401
        async with asyncio.timeout(120):
            while await used(b, made_keys[0]) != 401:
                pass
        assert one.settings.overlay.version == 9
    await ended(one, two)


async def test_while_the_database_is_away_nothing_changes(tmp_path: Any) -> None:
    """`tmp_path` is a folder, so that no database can be opened there."""
    state = made(database=f"sqlite:///{tmp_path}", patience=0.01)
    state.keeping.start()
    state.accounts.start()
    async with in_process(state) as client:
        assert await ask(client, "alice") == 200
        answer = await client.patch("/admin/tenants/acme", headers=ADMIN, json={"weight": 7})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database_unavailable")
        assert state.pipeline.tenants["acme"].weight == 2
        unknown = await client.post(CHAT, json=chat(), headers={"authorization": "Bearer later"})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (503, "not_ready")
    await ended(state)


async def test_a_server_whose_keys_are_all_in_the_database_is_never_open(tmp_path: Any) -> None:
    database = f"sqlite:///{tmp_path / 'kept.db'}"
    first = await begun(make_state(database=database))
    async with in_process(first) as client:
        headers = {"host": "127.0.0.1"}
        body = {"name": "root", "scopes": ["admin", "inference"]}
        answer = await client.post("/admin/tenants/default/keys", json=body, headers=headers)
        assert answer.status_code == 201
        key = answer.json()["key"]
        assert [await ask(client, key), await ask(client, "")] == [200, 401]
    await ended(first)
    second = make_state(database=database)
    second.keeping.start()
    second.accounts.start()
    async with in_process(second) as client:
        assert await ask(client, "") == 503
        await until(lambda: second.pipeline.tenants.complete)
        assert [await ask(client, key), await ask(client, "")] == [200, 401]
    await ended(second)


async def test_drain_over_http_is_a_stop() -> None:
    state = made(backend=FakeBackend(manual=True), control={"drain_timeout": 600.0})
    assert isinstance(state.pipeline.backend, FakeBackend)
    async with live(state) as base, patient() as client:
        running = asyncio.create_task(client.post(base + CHAT, json=chat(max_tokens=2), headers=ADMIN))
        await until(lambda: state.pipeline.running == 1)
        for _ in range(2):
            answer = await client.post(f"{base}/admin/drain", headers=ADMIN)
            assert answer.json() == {"draining": True, "running": 1, "waiting": 0, "drain_timeout_s": 600.0}
        assert (await client.get(f"{base}/health/ready")).status_code == 503
        late = await client.post(base + CHAT, json=chat(), headers=ADMIN)
        assert (late.status_code, late.json()["error"]["code"]) == (503, "draining")
        rows = (await client.get(f"{base}/admin/audit", headers=ADMIN)).json()["data"]
        assert [(row["action"], row["status"]) for row in rows] == [("drain", 200)] * 2
        while not running.done():
            state.pipeline.backend.step()
            await asyncio.sleep(0)
        assert running.result().status_code == 200


async def test_what_waits_and_runs_is_listed_and_the_settings_too() -> None:
    state = made(backend=FakeBackend(manual=True, max_sequences=1), api={"admin_keys": ("0" * 64,)})
    async with in_process(state) as client:
        tasks = [asyncio.create_task(ask(client, "alice")) for _ in range(3)]
        await until(lambda: state.pipeline.running == 1 and state.pipeline.waiting == 2)
        assert [one["tenant"] for one in (await do(client, "GET", "/requests"))["data"]] == ["acme"]
        found = await do(client, "GET", "/queue?limit=1")
        assert (len(found["data"]), found["total"], found["data"][0]["waits_for"]) == (1, 2, "machine")
        settings = {row["name"]: row for row in (await do(client, "GET", "/config"))["data"]}
        assert settings["api.admin_keys"] == {
            "name": "api.admin_keys", "value": "1 keys", "source": "program", "live": True
        }  # fmt: skip
        assert settings["tenants[0].keys[0].hash"]["value"] == "(kept)"
        refused = await do(client, "POST", "/reload", status=400)
        assert "not started from settings" in refused["error"]["message"]
        for one in [*state.pipeline.waiting_runs(), *state.pipeline.runs()]:
            await do(client, "POST", f"/requests/{one.id}/cancel")
        assert set(await asyncio.gather(*tasks)) == {503}


async def test_a_database_that_goes_away_is_said_once(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tailrace.control.accounts.accounts.EVERY", 0)
    state = await begun(made(database=f"sqlite:///{tmp_path / 'kept.db'}"))
    looks = 0

    async def look() -> None:
        nonlocal looks
        looks += 1
        raise Unavailable("The database does not answer")

    state.accounts.look = look  # type: ignore[method-assign]
    await until(lambda: looks > 3)
    assert [record.getMessage() for record in caplog.records].count(
        "changes of tenants and keys cannot be read: The database does not answer"
    ) == 1
    await ended(state)
