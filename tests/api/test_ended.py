"""Whoever looks at the ends of requests is told of every one, once, with its closed record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from tailrace.api.state import AppState
from tailrace.backends.fake import FakeBackend
from tailrace.backends.faulty import Fault, FaultyBackend, Kind
from tailrace.observe.ended import Ended, outcome_of
from tests.api.test_batches import ended, line, made, server
from tests.serving import chat, in_process, live, make_state, patient, until

CHAT = "/v1/chat/completions"


def watched(backend: Any = None, **settings: Any) -> tuple[AppState, list[Ended]]:
    state, ends = make_state(backend, **settings), list[Ended]()
    state.plane.watchers = (ends.append,)
    return state, ends


async def ended_of(method: str, path: str, **asked: Any) -> Ended:
    """The end of the one request that is made."""
    state, ends = watched()
    async with in_process(state) as client:
        await client.request(method, path, **asked)
    (end,) = ends
    return end


async def test_an_answer() -> None:
    end = await ended_of("POST", CHAT, json=chat(max_tokens=4), headers={"x-request-id": "mine"})
    assert (end.request_id, end.method, end.path, end.status) == ("mine", "POST", CHAT, 200)
    assert (end.tenant, end.outcome, end.error) == ("default", "ok", "")
    facts = end.timeline.facts
    assert (facts["route"], facts["asked"], facts["model"], facts["stream"]) == ("chat", "fake", "fake", False)
    assert str(facts["answer"]).startswith("chatcmpl-")
    assert facts["completion_tokens"] == 4
    assert end.opened_us == round(end.wall * 1e6) - end.timeline.total()


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("GET", "/v1/models", None, ("/v1/models", 200, "ok", "")),
        ("HEAD", "/v1/models", None, ("/v1/models", 200, "ok", "")),
        ("GET", "/v1/requests/nobody", None, ("/v1/requests/{request_id}", 404, "invalid", "not_found")),
        ("GET", "/secret/path", None, ("", 404, "invalid", "404")),
        ("DELETE", CHAT, None, (CHAT, 405, "invalid", "405")),
        ("POST", CHAT, {"model": "nobody", "messages": []}, (CHAT, 404, "invalid", "model_not_found")),
    ],
)
async def test_other_ends(method: str, path: str, body: Any, expected: tuple[str, int, str, str]) -> None:
    end = await ended_of(method, path, json=body)
    assert (end.path, end.status, end.outcome, end.error) == expected
    assert end.method == method


async def test_a_key_that_is_wrong() -> None:
    state, ends = watched(api={"api_keys": ("0" * 64,)})
    async with in_process(state) as client:
        assert (await client.post(CHAT, json=chat())).status_code == 401
    assert [(end.path, end.tenant, end.error) for end in ends] == [(CHAT, "", "missing_api_key")]


async def test_a_refusal_and_a_failure_in_the_stream_say_why() -> None:
    state, ends = watched(FaultyBackend(FakeBackend(), lambda request: Fault(Kind.RAISE, after=2)))
    async with in_process(state) as client:
        await client.post(CHAT, json=chat(stream=True, max_tokens=9))
        state.pipeline.begin_drain()
        await client.post(CHAT, json=chat())
    assert [(end.status, end.outcome, end.error) for end in ends] == [
        (200, "error", "internal_error"),
        (503, "rejected", "draining"),
    ]


async def test_a_client_that_leaves() -> None:
    state, ends = watched(FakeBackend(step_seconds=0.05))
    async with live(state) as url, patient(base_url=url) as client:
        async with client.stream("POST", CHAT, json=chat(stream=True, max_tokens=400)) as answer:
            await anext(answer.aiter_bytes())
        await until(lambda: ends)
    assert [(end.status, end.outcome, end.error) for end in ends] == [(200, "cancelled", "cancelled")]


async def test_lines_of_jobs(tmp_path: Path) -> None:
    ends: list[Ended] = []
    data = b"\n".join([line("good", chat(max_tokens=3)), line("bad", chat(n=0))])
    async with server(f"sqlite:///{tmp_path / 'kept.db'}") as (state, url):
        state.plane.watchers = (ends.append,)
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="x") as client:
            batch = await ended(client, (await made(client, data)).id)
    lines = {end.status: end for end in ends if end.job}
    assert {(end.job, end.method, end.path, end.tenant) for end in lines.values()} == {(batch.id, "", CHAT, "default")}
    assert [(lines[status].outcome, lines[status].error != "") for status in (200, 400)] == [
        ("ok", False),
        ("invalid", True),
    ]
    assert lines[200].timeline.facts["completion_tokens"] == 3


def test_outcomes_by_status() -> None:
    statuses = (0, 200, 304, 404, 429, 500, 503)
    assert [outcome_of(status) for status in statuses] == [
        "cancelled", "ok", "ok", "invalid", "rejected", "error", "rejected",
    ]  # fmt: skip


async def test_nobody_watches_by_default() -> None:
    assert make_state().plane.watchers == ()
