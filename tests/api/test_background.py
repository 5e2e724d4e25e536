"""Responses made in the background, as OpenAI's own client uses them, on both databases."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from tailrace.api.state import AppState
from tailrace.backends.fake import FakeBackend, say
from tailrace.policy import KeyPolicy, Policy, TenantPolicy
from tests.serving import in_process, live, make_state, until

TEXT = "A swift fox, Žďár and 👩🏽‍🚀."
RESPONSES = "/v1/responses"


@asynccontextmanager
async def running(state: AppState) -> AsyncIterator[AppState]:
    state.keeping.start()
    state.runner.start()
    state.deliveries.start()
    try:
        yield state
    finally:
        await state.close()
        await state.keeping.close()


def server(database: str, *, manual: bool = False, **options: Any) -> tuple[FakeBackend, AppState]:
    backend = FakeBackend(script=say(TEXT), max_context=4096, manual=manual)
    return backend, make_state(backend, database=database, **options)


async def step(backend: FakeBackend, condition: Any) -> None:
    """Steps of the backend until something holds."""
    async with asyncio.timeout(120):
        while not condition():
            backend.step()
            await asyncio.sleep(0)


def sample(app: AppState, name: str, **labels: str) -> float:
    value = app.metrics.registry.get_sample_value(f"tailrace_{name}", labels)
    assert value is not None
    return value


async def ended(client: httpx.AsyncClient, response_id: str) -> dict[str, Any]:
    async with asyncio.timeout(120):
        while True:
            found: dict[str, Any] = (await client.get(f"{RESPONSES}/{response_id}")).json()
            if found["status"] not in ("queued", "in_progress"):
                return found


async def test_the_client_makes_one_and_comes_back_for_it(url: str) -> None:
    _, state = server(url)
    async with running(state), live(state) as base, AsyncOpenAI(base_url=base + "/v1", api_key="x") as client:
        plain = await client.responses.create(model="fake", input="hi", instructions="Be brief.")
        made = await client.responses.create(model="fake", input="hi", instructions="Be brief.", background=True)
        assert (made.status, made.background, made.output) == ("queued", True, [])
        while made.status in ("queued", "in_progress"):
            made = await client.responses.retrieve(made.id)
        assert (made.status, made.output_text, made.background) == ("completed", TEXT, True)
        assert made.usage is not None and plain.usage is not None
        assert made.usage.output_tokens == plain.usage.output_tokens
        again = await client.responses.retrieve(made.id)
        assert again == made
        on = await client.responses.create(model="fake", input="and?", previous_response_id=made.id)
        assert on.previous_response_id == made.id
        items = [item.type async for item in client.responses.input_items.list(made.id)]
        assert items == ["message"]
        await client.responses.cancel(made.id)  # it has ended: nothing changes
        assert (await client.responses.retrieve(made.id)).status == "completed"
        await client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)


async def test_it_is_queued_then_in_progress_and_can_be_cancelled(url: str) -> None:
    _, state = server(url, manual=True)
    async with running(state), in_process(state) as client:
        made = (await client.post(RESPONSES, json={"input": "hi", "background": True})).json()
        path = f"{RESPONSES}/{made['id']}"
        await until(lambda: state.pipeline.running == 1)
        assert sum(sample(state, "jobs", state=each) for each in ("waiting", "running")) == 1
        assert sample(state, "job_lines_running") == 1
        assert sample(state, "jobs_oldest_seconds") > 0
        assert (await client.get(path)).json()["status"] == "in_progress"
        items = (await client.get(f"{path}/input_items")).json()["data"]
        assert [item["content"][0]["text"] for item in items] == ["hi"]
        assert (await client.delete(path)).status_code == 400
        on = await client.post(RESPONSES, json={"input": "and?", "previous_response_id": made["id"]})
        assert on.json()["error"]["code"] == "previous_response_not_found"
        cancelled = (await client.post(f"{path}/cancel")).json()
        assert (cancelled["status"], cancelled["output"]) == ("cancelled", [])
        await until(lambda: state.pipeline.running == 0)
        assert (await client.get(path)).json()["status"] == "cancelled"
        assert (await client.delete(path)).json()["deleted"]
        assert (await client.get(path)).status_code == 404


async def test_a_stream_is_read_on_by_its_sequence_numbers(url: str) -> None:
    _, state = server(url)
    async with running(state), live(state) as base, AsyncOpenAI(base_url=base + "/v1", api_key="x") as client:
        first, text, last = [], "", -1
        stream = await client.responses.create(model="fake", input="hi", background=True, stream=True)
        async for event in stream:
            first.append(event.type)
            last = event.sequence_number
            if event.type == "response.created":
                made = event.response
            if event.type == "response.output_text.delta":
                text += event.delta
                if len(text) > 10:
                    break
        await stream.close()
        assert first[:3] == ["response.created", "response.queued", "response.in_progress"]
        numbers = []
        async for event in await client.responses.retrieve(made.id, stream=True, starting_after=last):
            numbers.append(event.sequence_number)
            if event.type == "response.output_text.delta":
                text += event.delta
        assert numbers == list(range(last + 1, last + 1 + len(numbers)))
        assert event.type == "response.completed"
        assert text == TEXT == event.response.output_text
        whole = [event.type async for event in await client.responses.retrieve(made.id, stream=True)]
        assert whole[:3] == first[:3]
        kept = await client.responses.retrieve(made.id)
        assert kept.model_dump()["output"] == event.response.model_dump()["output"]


async def test_after_a_restart_the_end_alone_is_streamed(url: str) -> None:
    _, first = server(url)
    async with running(first), in_process(first) as client:
        made = (await client.post(RESPONSES, json={"input": "hi", "background": True})).json()
        whole = await ended(client, made["id"])
        await until(lambda: first.runner.running == 0)
        counts = [sample(first, "job_lines_total", result=each) for each in ("done", "failed", "again")]
        assert counts == [1, 0, 0]
    _, second = server(url)
    async with running(second), in_process(second) as client:
        path = f"{RESPONSES}/{made['id']}"
        assert (await client.get(path)).json() == whole
        streamed = await client.get(path, params={"stream": "true", "starting_after": "7"})
        assert streamed.text.startswith("id: 8\nevent: response.completed\ndata: ")
        assert streamed.text.count("\n\n") == 1
        wrong = await client.get(path, params={"stream": "true", "starting_after": "x"})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "starting_after")


async def test_what_was_not_made_is_made_after_a_restart(url: str) -> None:
    """The first server ends as one does that is killed: with its claim on the line."""
    _, first = server(url, manual=True)
    async with running(first), in_process(first) as client:
        made = (await client.post(RESPONSES, json={"input": "hi", "background": True})).json()
        await until(lambda: first.pipeline.running == 1)
    _, second = server(url)
    async with running(second), in_process(second) as client:
        whole = await ended(client, made["id"])
        assert (whole["status"], whole["output"][0]["content"][0]["text"]) == ("completed", TEXT)
        assert whole["created_at"] == made["created_at"]


async def test_a_failure_is_its_end(url: str) -> None:
    _, state = server(url)
    async with running(state), in_process(state) as client:
        asked = {"input": "x" * 5000, "background": True}
        made = (await client.post(RESPONSES, json=asked)).json()
        whole = await ended(client, made["id"])
        assert (whole["status"], whole["error"]["type"]) == ("failed", "context_length_exceeded")
        streamed = await client.get(f"{RESPONSES}/{made['id']}", params={"stream": "true"})
        assert "event: response.failed" in streamed.text


async def test_nothing_of_one_is_kept_before_its_end_is(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled when it was whole, and only not written yet."""
    _, state = server(url)
    async with running(state), in_process(state) as client:
        kept = await state.keeping.opened()
        real, asked, may = kept.jobs.finish, asyncio.Event(), asyncio.Event()

        async def finish(*given: Any) -> bool:
            asked.set()
            await may.wait()
            return await real(*given)

        monkeypatch.setattr(kept.jobs, "finish", finish)
        made = (await client.post(RESPONSES, json={"input": "hi", "background": True})).json()
        await asked.wait()
        path = f"{RESPONSES}/{made['id']}"
        stream = state.streams.find("default", made["id"])
        assert stream is not None and not stream.ended
        assert (await client.get(path)).json()["status"] == "in_progress"
        assert (await client.post(f"{path}/cancel")).json()["status"] == "cancelled"
        may.set()
        await until(lambda: state.runner.running == 0)
        assert (stream.ended, stream.whole) == (True, False)
        assert sample(state, "streams_kept") == 1
        assert (await client.get(path)).json()["status"] == "cancelled"
        assert await kept.responses.get("default", made["id"], 0.0) is None


async def test_what_could_never_be_is_refused_at_once(url: str) -> None:
    _, state = server(url)
    async with running(state), in_process(state) as client:

        async def refused(**fields: Any) -> tuple[int, str]:
            answer = await client.post(RESPONSES, json={"input": "hi", "background": True, **fields})
            return answer.status_code, answer.json()["error"]["param"]

        assert await refused(store=False) == (400, "store")
        assert await refused(model="none") == (404, "model")
        assert await refused(top_p=2) == (400, "top_p")
        assert await refused(input=[{"type": "message"}]) == (400, "input[0].role")
        assert await refused(previous_response_id="resp_0") == (400, "previous_response_id")
        assert await refused(webhook="https://evil.example/") == (400, "webhook")
        made = (await client.post(RESPONSES, json={"input": "hi"})).json()
        stream = await client.get(f"{RESPONSES}/{made['id']}", params={"stream": "true"})
        assert (stream.status_code, stream.json()["error"]["param"]) == (400, "stream")


async def test_nothing_is_made_in_the_background_without_a_database() -> None:
    async with in_process(make_state(FakeBackend())) as client:
        made = await client.post(RESPONSES, json={"input": "hi", "background": True})
        assert (made.status_code, made.json()["error"]["code"]) == (503, "nothing_kept")


async def test_a_tenant_has_its_own_alone_and_not_too_many(url: str) -> None:
    tenants = tuple(
        TenantPolicy(name, keys=(KeyPolicy(name, f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"),))
        for name in ("a", "b")
    )
    _, state = server(url, manual=True, policy=Policy(tenants=tenants), control={"max_deferred": 1})
    async with running(state), in_process(state) as client:
        mine, other = ({"authorization": f"Bearer {name}"} for name in ("a", "b"))
        asked = {"input": "hi", "background": True}
        made = (await client.post(RESPONSES, json=asked, headers=mine)).json()
        path = f"{RESPONSES}/{made['id']}"
        for method, place in (("GET", ""), ("GET", "?stream=true"), ("GET", "/input_items"), ("POST", "/cancel")):
            assert (await client.request(method, path + place, headers=other)).status_code == 404
        assert (await client.delete(path, headers=other)).status_code == 404
        assert (await client.get(f"/v1/streams/{made['id']}", headers=other)).status_code == 404
        full = await client.post(RESPONSES, json=asked, headers=mine)
        assert (full.status_code, full.json()["error"]["code"]) == (429, "queue_full")
        assert (await client.post(RESPONSES, json=asked, headers=other)).status_code == 200
