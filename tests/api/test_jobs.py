"""Requests that become jobs because they would come too late: handles, results, streams, webhooks."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from typing import Any

import httpx
import pytest
from aiohttp import web

from tailrace.backends.fake import FakeBackend, say
from tailrace.policy import KeyPolicy, Policy, TenantPolicy
from tests.api.test_background import running
from tests.control.webhooks.test_deliveries import receiver
from tests.serving import chat, in_process, make_state, parse_stream, until

CHAT = "/v1/chat/completions"
TEXT = "A swift fox, Žďár."
LATE = {"x-tailrace-deadline-ms": "1"}  # nothing could start so soon
SECRET = "whsec_" + base64.b64encode(bytes(32)).decode()


def backend(**options: Any) -> FakeBackend:
    return FakeBackend(script=say(TEXT), max_context=4096, step_seconds=0.002, **options)


def without(body: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in names}


async def done(client: httpx.AsyncClient, job: dict[str, Any]) -> dict[str, Any]:
    async with asyncio.timeout(120):
        while True:
            found: dict[str, Any] = (await client.get(job["poll_url"])).json()
            if found["status"] not in ("queued", "in_progress"):
                return found


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat("hi")),
        (CHAT, chat("hi", stream=True, stream_options={"include_usage": True})),
        (CHAT, chat("hi", n=2, best_of=3)),
        ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 9}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/embeddings", {"input": ["a", "b"]}),
    ],
)
async def test_the_result_is_what_the_route_would_have_answered(path: str, body: dict[str, Any], tmp_path: Any) -> None:
    state = make_state(backend(), database=f"sqlite:///{tmp_path / 'kept.db'}")
    async with running(state), in_process(state) as client:
        plain = (await client.post(path, json=without(body, "stream", "stream_options"))).json()
        made = await client.post(path, json={**body, "overflow": "job"}, headers=LATE)
        job = made.json()
        assert (made.status_code, job["object"], job["status"]) == (202, "job", "queued"), job
        assert made.headers["location"] == job["poll_url"] == f"/v1/jobs/{job['id']}"
        assert job["reason"] == "deadline_unattainable"
        assert job["predicted_ttft_s"] > job["limit_s"]
        found = await done(client, job)
        assert found["status"] == "completed", found
        assert found["result"]["status_code"] == 200
        differing = ("id", "created", "created_at", "completed_at", "timings", "usage", "output", "choices")
        answer = found["result"]["body"]
        assert without(answer, *differing) == without(plain, *differing)
        assert said(answer) == said(plain)
        alone = await client.get(f"{job['poll_url']}/result")
        assert (alone.status_code, alone.json()) == (200, answer)


def said(body: dict[str, Any]) -> Any:
    if "choices" in body:
        return [choice.get("text") or choice["message"]["content"] for choice in body["choices"]]
    if "output" in body:
        return [item["content"][0]["text"] for item in body["output"]]
    return body["data"]


async def test_its_stream_says_the_same(url: str) -> None:
    state = make_state(backend(), database=url)
    async with running(state), in_process(state) as client:
        job = (await client.post(CHAT, json=chat("hi", overflow="job"), headers=LATE)).json()
        whole = (await client.get(job["stream_url"])).text
        events = [block.partition("\n") for block in whole.split("\n\n") if block and not block.startswith(":")]
        assert [number for number, _, _ in events] == [f"id: {number}" for number in range(len(events))]
        streamed = parse_stream("".join(f"{data}\n\n" for _, _, data in events))
        assert streamed.done
        assert streamed.text() == TEXT == said((await done(client, job))["result"]["body"])[0]
        rest = (await client.get(job["stream_url"], headers={"last-event-id": "4"})).text
        assert rest == "".join(f"{number}\n{data}\n\n" for number, _, data in events[5:])


async def test_who_does_not_want_a_job_is_refused(tmp_path: Any) -> None:
    state = make_state(backend(), database=f"sqlite:///{tmp_path / 'kept.db'}")
    async with running(state), in_process(state) as client:
        assert (await client.post(CHAT, json=chat("hi"), headers=LATE)).status_code == 503
        by_header = await client.post(CHAT, json=chat("hi"), headers=LATE | {"x-tailrace-overflow": "job"})
        assert by_header.status_code == 202
        asked = chat("hi", overflow="job")
        not_now = await client.post(CHAT, json=asked, headers=LATE | {"x-tailrace-overflow": "refuse"})
        assert not_now.status_code == 503
        wrong = await client.post(CHAT, json=asked, headers={"x-tailrace-overflow": "maybe"})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "x-tailrace-overflow")
        in_time = await client.post(CHAT, json=asked)
        assert (in_time.status_code, said(in_time.json())) == (200, [TEXT])
    async with in_process(make_state(backend())) as client:  # nothing is kept
        assert (await client.post(CHAT, json=asked, headers=LATE)).status_code == 503


async def test_a_tenants_rule_and_its_own_jobs_alone(url: str) -> None:
    def tenant(name: str, overflow: str) -> TenantPolicy:
        key = KeyPolicy(name, f"sha256:{hashlib.sha256(name.encode()).hexdigest()}")
        return TenantPolicy(name, keys=(key,), overflow=overflow)

    policy = Policy(tenants=(tenant("a", "job"), tenant("b", "refuse")))
    state = make_state(backend(), database=url, policy=policy)
    async with running(state), in_process(state) as client:
        mine, other = ({"authorization": f"Bearer {name}"} for name in ("a", "b"))
        made = [(await client.post(CHAT, json=chat("hi"), headers=mine | LATE)).json() for _ in range(3)]
        assert (await client.post(CHAT, json=chat("hi"), headers=other | LATE)).status_code == 503
        ids = [job["id"] for job in reversed(made)]
        listed = (await client.get("/v1/jobs", params={"limit": 2}, headers=mine)).json()
        assert ([job["id"] for job in listed["data"]], listed["has_more"]) == (ids[:2], True)
        rest = (await client.get("/v1/jobs", params={"after": ids[1]}, headers=mine)).json()
        assert ([job["id"] for job in rest["data"]], rest["has_more"]) == (ids[2:], False)
        assert (await client.get("/v1/jobs", headers=other)).json()["data"] == []
        assert (await client.get("/v1/jobs", params={"after": ids[0]}, headers=other)).status_code == 400
        for method, place in (("GET", ""), ("GET", "/stream"), ("GET", "/result"), ("POST", "/cancel")):
            assert (await client.request(method, f"/v1/jobs/{ids[0]}{place}", headers=other)).status_code == 404
        assert (await client.get(f"/v1/responses/{ids[0]}", headers=mine)).status_code == 404


async def test_a_job_can_be_cancelled(url: str) -> None:
    state = make_state(backend(manual=True), database=url)
    async with running(state), in_process(state) as client:
        job = (await client.post(CHAT, json=chat("hi", overflow="job"), headers=LATE)).json()
        await until(lambda: state.pipeline.running == 1)
        assert (await client.get(f"{job['poll_url']}/result")).status_code == 404
        cancelled = (await client.post(f"{job['poll_url']}/cancel")).json()
        assert (cancelled["status"], cancelled["result"]) == ("cancelled", None)
        await until(lambda: state.pipeline.running == 0)
        stream = (await client.get(job["stream_url"])).text
        assert stream.splitlines()[1] == "event: job.cancelled"
        assert (await client.post(f"{job['poll_url']}/cancel")).json()["status"] == "cancelled"


async def test_its_end_is_told_by_webhook(url: str) -> None:
    tenants = (TenantPolicy("default", webhook_secret=SECRET),)
    async with receiver(lambda number: web.Response()) as target:
        api = {"webhook_hosts": (target.place,)}
        state = make_state(backend(), database=url, policy=Policy(tenants=tenants), api=api)
        async with running(state), in_process(state) as client:
            hook = f"http://{target.place}/hook"
            job = (await client.post(CHAT, json=chat("hi", overflow="job", webhook=hook), headers=LATE)).json()
            assert job["webhook"]["status"] == "waiting"
            await until(lambda: target.got)
            async with asyncio.timeout(120):
                while (found := await done(client, job))["webhook"]["status"] != "delivered":
                    pass
            assert found["webhook"] == {
                "url": hook, "status": "delivered", "attempts": 1, "last_status": 200, "last_error": None,
            }  # fmt: skip
            ((_, body),) = target.got
            event = json.loads(body)
            assert (event["type"], event["data"]) == ("job.completed", {"id": job["id"]})
            evil = chat("hi", overflow="job", webhook="http://169.254.169.254/")
            refused = await client.post(CHAT, json=evil, headers=LATE)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "webhook_not_allowed")


async def test_a_job_that_fails_has_the_error_as_its_result(tmp_path: Any) -> None:
    class Broken(FakeBackend):
        def generate(self, request: Any) -> Any:
            raise RuntimeError("broken")

    state = make_state(Broken(step_seconds=0.002), database=f"sqlite:///{tmp_path / 'kept.db'}")
    async with running(state), in_process(state) as client:
        job = (await client.post(CHAT, json=chat("hi", overflow="job"), headers=LATE)).json()
        found = await done(client, job)
        assert (found["status"], found["result"]["status_code"]) == ("failed", 500)
        alone = await client.get(f"{job['poll_url']}/result")
        assert (alone.status_code, alone.json()["error"]["code"]) == (500, "internal_error")
