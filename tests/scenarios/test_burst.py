"""A burst larger than the queue (case 18): everyone gets an answer, refusals are early and say when to come back."""

from __future__ import annotations

import asyncio

from tailrace.backends.fake import FakeBackend
from tests.serving import chat, gauge, live, make_state, patient


async def test_burst() -> None:
    backend = FakeBackend(max_sequences=8)
    state = make_state(backend, control={"max_waiting_requests": 12})
    async with live(state) as base, patient() as client:
        bodies = [chat(f"Item {i}", max_tokens=64, ignore_eos=True, n=4 if i % 7 == 0 else 1) for i in range(200)]
        answers = await asyncio.gather(*(client.post(base + "/v1/chat/completions", json=body) for body in bodies))
        assert (await client.get(base + "/health/live")).status_code == 200
    served = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(served) + len(refused) == 200
    assert len(served) >= 8
    assert len(refused) >= 1
    for answer in refused:
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] == "queue_full"
    assert len(backend.prompts) == len(served)  # nothing was computed for the refused
    assert all(choice["finish_reason"] == "length" for answer in served for choice in answer.json()["choices"])
    assert (gauge(state, "tailrace_requests_running"), gauge(state, "tailrace_requests_waiting")) == (0, 0)
