"""Thoughts over HTTP: beside the content, streamed and plain, counted, and bounded by the engine."""

from __future__ import annotations

from typing import Any

import pytest
from openai import AsyncOpenAI

from tailrace.backends.engine import EngineBackend
from tailrace.backends.fake import FakeBackend, say
from tailrace.clock import SystemClock
from tests.engine.support import parts, tokenizer
from tests.serving import chat, in_process, live, make_state, parse_stream, template
from tests.text import families

CHAT = "/v1/chat/completions"
SAID = "<think>\nŽďár, 👩🏽‍🚀.\n</think>\n\nYes."
TOOLS: list[Any] = [{"type": "function", "function": {"name": "f"}}]
INSIDE = "{{ messages[0].content }}{% if add_generation_prompt %}<think>\n{% endif %}{# </think> #}"


def talkative(text: str = SAID) -> FakeBackend:
    return FakeBackend(script=say(text), max_context=4096)


@pytest.mark.parametrize("tools", [[], TOOLS])
async def test_a_stream_says_what_the_plain_answer_says(tools: list[Any]) -> None:
    async with in_process(make_state(talkative(), chat=template(families.THINKING))) as client:
        body = chat(tools=tools, n=2)
        plain = (await client.post(CHAT, json=body)).json()
        streamed = parse_stream(
            (await client.post(CHAT, json=body | {"stream": True, "stream_options": {"include_usage": True}})).text
        )
    for choice in plain["choices"]:
        message = choice["message"]
        assert (message["reasoning_content"], message["content"]) == ("Žďár, 👩🏽‍🚀.", "Yes.")
        deltas = [one["delta"] for one in streamed.choices(choice["index"])]
        assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == message["reasoning_content"]
        assert "".join(delta.get("content") or "" for delta in deltas) == "Yes."
    usage = plain["usage"]
    thoughts = len(SAID[: SAID.index("</think>") + 8].encode())  # the fake's tokens are bytes
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 2 * thoughts}
    assert streamed.events[-1]["usage"]["completion_tokens_details"] == usage["completion_tokens_details"]


async def test_without_thinking_there_are_no_thoughts() -> None:
    async with in_process(make_state(talkative("Yes."), chat=template(families.THINKING))) as client:
        asked = chat(chat_template_kwargs={"enable_thinking": False})
        off = (await client.post(CHAT, json=asked)).json()
        none = (await client.post(CHAT, json=chat())).json()
    assert off["choices"][0]["message"]["content"] == "Yes."
    assert none["choices"][0]["message"]["reasoning_content"] is None
    assert none["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
    assert "completion_tokens_details" not in off["usage"]


async def test_a_prompt_that_ends_within_the_thoughts() -> None:
    async with in_process(make_state(talkative("so\n</think>\nYes."), chat=template(INSIDE))) as client:
        message = (await client.post(CHAT, json=chat())).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("so", "Yes.")


async def test_the_engine_ends_the_thoughts() -> None:
    backend = EngineBackend(parts(slots=4), "fake", SystemClock())
    backend.start()
    state = make_state(backend, chat=template(INSIDE), tokens=tokenizer())
    try:
        async with in_process(state) as client:
            answers = [
                (await client.post(CHAT, json=chat(seed=1, max_tokens=60, thinking_token_budget=n))).json()
                for n in (0, 5, 20)
            ]
    finally:
        backend.close()
    closing = len(tokenizer().encode("\n</think>", add_special=False, parse_special=True))
    for n, answer in zip((0, 5, 20), answers, strict=True):
        thoughts = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert n + closing <= thoughts <= n + closing + 2  # the mark's last token may have white space behind it
        assert "</think>" not in answer["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "much"}, "reasoning_effort"),
        ({"thinking_token_budget": -1}, "thinking_token_budget"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"thinking_token_budget": 4}, "thinking_token_budget"),
    ],
)
async def test_refusals(fields: dict[str, Any], param: str) -> None:
    async with in_process(make_state(talkative())) as client:  # of a model that does not think
        answer = await client.post(CHAT, json=chat(**fields))
        assert (await client.post(CHAT, json=chat(reasoning_effort="none"))).status_code == 200
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_the_openai_client_reads_thoughts() -> None:
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    state = make_state(talkative(), chat=template(families.THINKING))
    async with live(state) as base, AsyncOpenAI(base_url=base + "/v1", api_key="x") as client:
        plain = await client.chat.completions.create(model="fake", messages=messages)
        thoughts = ""
        async for chunk in await client.chat.completions.create(model="fake", messages=messages, stream=True):
            for choice in chunk.choices:
                thoughts += getattr(choice.delta, "reasoning_content", None) or ""
    assert plain.usage is not None
    assert plain.usage.completion_tokens_details is not None
    assert plain.usage.completion_tokens_details.reasoning_tokens
    assert plain.choices[0].message.reasoning_content == thoughts == "Žďár, 👩🏽‍🚀."  # type: ignore[attr-defined]
