"""Beam search over HTTP, on an engine whose answers are known."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tailrace.backends.engine import EngineBackend
from tailrace.clock import SystemClock
from tests.engine.support import parts
from tests.serving import chat, in_process, make_state

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
SEARCH = {"use_beam_search": True, "max_tokens": 7, "ignore_eos": True}


@asynccontextmanager
async def serving() -> AsyncIterator[httpx.AsyncClient]:
    backend = EngineBackend(parts(blocks=256), "fake", SystemClock())
    backend.start()
    try:
        async with in_process(make_state(backend)) as client:
            yield client
    finally:
        backend.close()


async def post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_the_best_answers_of_each_prompt_come_first() -> None:
    body = {"prompt": ["ab", "cd"], "logprobs": 1, "prompt_logprobs": 0, **SEARCH}
    async with serving() as client:
        all_four = await post(client, TEXT, {**body, "n": 4})
        two = await post(client, TEXT, {**body, "n": 2, "best_of": 4})
    assert [choice["index"] for choice in two["choices"]] == [0, 1, 2, 3]
    for prompt in (0, 1):
        made = all_four["choices"][4 * prompt : 4 * prompt + 4]
        sums = [sum(choice["logprobs"]["token_logprobs"]) for choice in made]
        assert sums == sorted(sums, reverse=True)
        assert len({choice["text"] for choice in made}) == 4
        assert {len(choice["prompt_logprobs"]) for choice in made} == {2}
        shown = two["choices"][2 * prompt : 2 * prompt + 2]
        assert [choice["text"] for choice in shown] == [choice["text"] for choice in made[:2]]
    assert {choice["finish_reason"] for choice in all_four["choices"]} == {"length"}
    assert two["usage"]["completion_tokens"] == all_four["usage"]["completion_tokens"] == 2 * 4 * 7
    assert two["usage"]["prompt_tokens"] == 4


async def test_a_chat_says_the_same_alone_and_among_others() -> None:
    body = chat(n=3, logprobs=True, length_penalty=0.3, **SEARCH)
    async with serving() as client:
        first = await post(client, CHAT, body)
        again = await post(client, CHAT, {**body, "seed": 5})
    assert [choice["message"]["role"] for choice in first["choices"]] == ["assistant"] * 3
    assert len({choice["message"]["content"] for choice in first["choices"]}) == 3
    assert first["choices"] == again["choices"]
    assert [len(choice["logprobs"]["content"]) for choice in first["choices"]] == [7] * 3
