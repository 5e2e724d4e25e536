"""Everything that can become of requests at once: ledger, metrics and what clients were told add up to the same."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tailrace.api.state import AppState
from tailrace.backends.fake import FakeBackend
from tailrace.backends.faulty import Fault, FaultyBackend, Kind
from tailrace.observe.entry import Entry
from tailrace.policy import Policy, Quota
from tailrace.types import GenerateRequest
from tests.api.test_tenants import bearer, tenant
from tests.serving import chat, live, make_state, parse_stream, patient, until

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RAISES, FAILS, ENDS, HANGS, HANGS_AT_ONCE = 41, 42, 43, 44, 45  # max_tokens of those that meet a fault
FAULTS = {
    RAISES: Fault(Kind.RAISE, 2),
    FAILS: Fault(Kind.ERROR, 3),
    ENDS: Fault(Kind.END, 1),
    HANGS: Fault(Kind.HANG, 2),
    HANGS_AT_ONCE: Fault(Kind.HANG),
}
TENANTS = ("acme", "other", "small")
TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens")
PHASES = ("render", "prefill", "decode")


def plan(request: GenerateRequest) -> Fault | None:
    return FAULTS.get(request.stop.max_tokens)


@pytest.fixture
async def app(url: str) -> AsyncIterator[AppState]:
    tenants = tenant("acme"), tenant("other"), tenant("small", limits=Quota(requests_per_minute=1))
    backend = FaultyBackend(FakeBackend(max_sequences=6, max_context=512), plan)
    app = make_state(backend, policy=Policy(tenants), database=url)
    app.keeping.start()
    yield app
    await app.close()
    await app.keeping.close()


class Clients:
    """Keeps what each was told: by request id, the usage and the timings of answers that ended well."""

    def __init__(self, client: httpx.AsyncClient, base: str) -> None:
        self.sent = 0
        self.told: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
        self._client = client
        self._base = base

    async def ask(self, path: str, body: dict[str, Any], key: str = "acme") -> None:
        name = self._name()
        headers = {**bearer(key), "x-request-id": name}
        answer = await self._client.post(self._base + path, json=body, headers=headers)
        if answer.status_code != 200:
            return
        if not body.get("stream"):
            events = [answer.json()]
        else:
            events = parse_stream(answer.text).events if path in (CHAT, TEXT) else _named(answer.text)
        found = [event for event in events if event.get("usage") and event.get("timings")]
        if found and "error" not in events[-1]:
            self.told[name] = found[-1]["usage"], found[-1]["timings"]

    async def leave(self, path: str, body: dict[str, Any], started: Any) -> None:
        """Hang up: a stream's reader after its first event, another once its request is there."""
        headers = {**bearer("acme"), "x-request-id": self._name()}
        if body.get("stream"):
            async with self._client.stream("POST", self._base + path, json=body, headers=headers) as answer:
                await anext(answer.aiter_lines())
            return
        task = asyncio.create_task(self._client.post(self._base + path, json=body, headers=headers))
        await until(started)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def _name(self) -> str:
        self.sent += 1
        return f"r{self.sent}"


def _named(text: str) -> list[dict[str, Any]]:
    """Events of an API that names them."""
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]


async def everything(clients: Clients, app: AppState) -> None:
    inputs = [f"text {number}" for number in range(40)]  # more than a session takes
    good = [
        (path, {"model": "fake", **body, "stream": stream, **_usage(path, stream)})
        for stream in (False, True)
        for path, body in (
            (CHAT, chat("hello " * 20, max_tokens=9)),
            (CHAT, chat("hello " * 20, max_tokens=9, n=3, temperature=1.0, seed=1)),
            (TEXT, {"prompt": "once", "max_tokens": 12, "ignore_eos": True}),
            (TEXT, {"prompt": ["once", "upon a time" * 9, "in"], "max_tokens": 5, "n": 2}),
            ("/v1/responses", {"input": "hello", "max_output_tokens": 20}),
            ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 6}),
        )
    ]
    good += [("/v1/embeddings", {"input": inputs}), ("/v1/score", {"text_1": "a", "text_2": ["b", "c"]})]
    bad = [
        (CHAT, chat(temperature=9)),
        (CHAT, chat(model="none")),
        (TEXT, {"prompt": "x" * 999}),
        (CHAT, {"messages": 1}),
    ]
    failing = [(CHAT, chat(max_tokens=fault, stream=stream)) for fault in (RAISES, FAILS, ENDS) for stream in (0, 1)]
    failing += [(TEXT, {"prompt": ["one", "two", "three"], "max_tokens": RAISES})]
    failing = [(path, {**body, "stream": bool(body.get("stream"))}) for path, body in failing]
    tasks = [clients.ask(path, body, key) for path, body in good for key in ("acme", "other")]
    tasks += [clients.ask(path, body) for path, body in (*bad, *failing)]
    tasks += [clients.ask(CHAT, chat(max_tokens=2), "small") for _ in range(3)]  # one is let in
    await asyncio.gather(*tasks)
    for body in (chat(max_tokens=HANGS, stream=True), chat(max_tokens=HANGS, n=2), chat(max_tokens=HANGS_AT_ONCE)):
        await clients.leave(CHAT, body, lambda: app.pipeline.running)
        await until(lambda: not (app.pipeline.running or app.pipeline.waiting))


def _usage(path: str, stream: bool) -> dict[str, Any]:
    return {"stream_options": {"include_usage": True}} if stream and path in (CHAT, TEXT) else {}


def sample(app: AppState, name: str, **labels: str) -> float:
    return app.metrics.registry.get_sample_value(name, labels) or 0.0


async def test_the_sums_are_the_same_everywhere(app: AppState) -> None:
    async with live(app) as base, patient() as client:
        clients = Clients(client, base)
        await everything(clients, app)
        await until(lambda: app.ledger.written >= clients.sent)
    kept = await app.keeping.needed()
    rows = [
        Entry.of_row(dict(row)) for name in ("acme", "other", "small") for row in await kept.ledger.latest(name, 999)
    ]
    assert len(rows) == clients.sent == app.ledger.written
    ends = Counter((row.route, row.outcome) for row in rows)
    assert {outcome for _, outcome in ends} == {"ok", "invalid", "rejected", "error", "cancelled"}
    assert ends[("chat", "cancelled")] == 3 and ends[("chat", "rejected")] == 2
    for (route, outcome), count in ends.items():
        assert sample(app, "tailrace_requests_total", route=route, outcome=outcome) == count, (route, outcome)
    for name, metric in zip(TOKENS, ("prompt", "cached", "generated"), strict=True):
        assert sample(app, f"tailrace_{metric}_tokens_total") == sum(getattr(row, name) for row in rows)
    for name in TENANTS:
        spent = sum(row.device_us for row in rows if row.tenant == name)
        assert round(sample(app, "tailrace_device_seconds_total", tenant=name) * 1e6) == spent
    _as_told({row.request_id: row for row in rows}, clients.told)


def _as_told(rows: dict[str, Entry], told: dict[str, tuple[dict[str, Any], dict[str, Any]]]) -> None:
    assert len(told) >= 20
    for name, (usage, times) in told.items():
        row = rows[name]
        assert row.outcome == "ok"
        assert [times[each] for each in TOKENS] == [getattr(row, each) for each in TOKENS]
        if "prompt_tokens" in usage:
            assert usage["prompt_tokens"] == row.prompt_tokens
            assert usage.get("completion_tokens", 0) == row.completion_tokens
        assert times["queue_ms"] == row.queue_us / 1000
        assert [times[f"{phase}_ms"] for phase in PHASES] == [row.phases.get(phase, 0) / 1000 for phase in PHASES]
        assert times["ttft_ms"] == (None if row.ttft_us is None else row.ttft_us / 1000)
        assert sum(row.phases.values()) == row.total_us >= round(times["total_ms"] * 1000)
