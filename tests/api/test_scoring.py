"""Scored prompts, the best of several answers and salted caches, over HTTP."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from tailrace.backends.fake import FakeBackend
from tailrace.protocol.schema import ChatCompletion, Completion
from tests.serving import chat, in_process, make_state

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"


async def post(client: Any, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_prompt_logprobs_of_both_routes() -> None:
    async with in_process(make_state()) as client:
        text = await post(client, TEXT, {"prompt": ["abc", "de"], "max_tokens": 1, "n": 2, "prompt_logprobs": 2})
        lengths = [len(choice["prompt_logprobs"]) for choice in text["choices"]]
        assert lengths == [3, 3, 2, 2]
        scored = text["choices"][0]["prompt_logprobs"]
        assert scored[0] is None
        assert str(ord("b")) in scored[1]
        assert text["choices"][0]["logprobs"] is None
        spoken = await post(client, CHAT, chat(prompt_logprobs=0, max_tokens=1))
        assert len(spoken["prompt_logprobs"]) == spoken["usage"]["prompt_tokens"]
        assert "prompt_logprobs" not in await post(client, CHAT, chat(max_tokens=1))
    # Both are what the page says they are.
    assert (TypeAdapter(Completion).validate_python(text).choices[0].prompt_logprobs or [])[0] is None
    shown = TypeAdapter(ChatCompletion).validate_python(spoken).prompt_logprobs
    assert shown is not None and [None if entry is None else len(entry) for entry in shown][:2] == [None, 1]


async def test_echo_and_prompt_logprobs_keep_their_own_widths() -> None:
    body = {"prompt": "abc", "max_tokens": 0, "echo": True, "logprobs": 1}
    async with in_process(make_state()) as client:
        alone = await post(client, TEXT, body)
        both = await post(client, TEXT, {**body, "prompt_logprobs": 4})
    assert both["choices"][0]["logprobs"] == alone["choices"][0]["logprobs"]
    assert len(both["choices"][0]["prompt_logprobs"][1]) >= 4


async def test_the_best_of_several_are_the_most_likely_of_all() -> None:
    body = {"prompt": ["ab", "cd"], "max_tokens": 6, "seed": 3, "logprobs": 0}
    async with in_process(make_state()) as client:
        every = await post(client, TEXT, {**body, "n": 4})
        some = await post(client, TEXT, {**body, "n": 2, "best_of": 4})
    for prompt in (0, 1):
        made = every["choices"][4 * prompt : 4 * prompt + 4]
        made.sort(key=lambda choice: -sum(choice["logprobs"]["token_logprobs"]))
        shown = some["choices"][2 * prompt : 2 * prompt + 2]
        assert [c["text"] for c in shown] == [c["text"] for c in made[:2]]
    assert [choice["index"] for choice in some["choices"]] == [0, 1, 2, 3]
    assert some["usage"] == every["usage"]


async def test_another_salt_finds_nothing_in_the_cache() -> None:
    body = {"prompt": "x" * 200, "max_tokens": 1}
    async with in_process(make_state(FakeBackend())) as client:
        found = [
            (await post(client, TEXT, body | salt))["usage"]["prompt_tokens_details"]["cached_tokens"]
            for salt in ({"cache_salt": "a"}, {"cache_salt": "a"}, {"cache_salt": "b"}, {}, {})
        ]
    assert [tokens > 0 for tokens in found] == [False, True, False, False, True]
