"""The openai package as people use it: sync, async, streaming, and its own error classes."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tailrace.backends.fake import FakeBackend, say
from tests.serving import live, make_state, until

MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]
SAID = "Žďár 👩🏽‍🚀 ok"


def talkative() -> FakeBackend:
    return FakeBackend(script=say(SAID))


async def test_async_client() -> None:
    async with live(make_state(talkative())) as base, AsyncOpenAI(base_url=base + "/v1", api_key="x") as client:
        answer = await client.chat.completions.create(model="fake", messages=MESSAGES, logprobs=True, top_logprobs=2)
        assert answer.choices[0].message.content == SAID
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == len(SAID.encode()) + 1
        assert answer.usage.prompt_tokens_details is not None
        assert answer.choices[0].logprobs is not None
        content = answer.choices[0].logprobs.content
        assert content is not None
        assert b"".join(bytes(token.bytes or []) for token in content[:-1]).decode() == SAID
        assert len(content[0].top_logprobs) == 2


async def test_async_stream() -> None:
    async with live(make_state(talkative())) as base, AsyncOpenAI(base_url=base + "/v1", api_key="x") as client:
        stream = await client.chat.completions.create(
            model="fake", messages=MESSAGES, stream=True, stream_options={"include_usage": True}, n=2
        )
        texts, finishes, usage = ["", ""], [], None
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                finishes += [choice.finish_reason] if choice.finish_reason else []
    assert texts == [SAID, SAID]
    assert finishes == ["stop", "stop"]
    assert usage is not None
    assert usage.completion_tokens == 2 * (len(SAID.encode()) + 1)


async def test_completions_and_models() -> None:
    async with live(make_state(talkative())) as base, AsyncOpenAI(base_url=base + "/v1", api_key="x") as client:
        answer = await client.completions.create(model="fake", prompt=["a", "b"], max_tokens=5, logprobs=1, echo=True)
        assert [choice.text for choice in answer.choices] == ["a" + "Žďá"[:2] + "\ufffd", "b" + "Žďá"[:2] + "\ufffd"]
        stream = await client.completions.create(model="fake", prompt="a", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == SAID.encode()[:16].decode(
            "utf-8", "replace"
        )
        assert [model.id async for model in client.models.list()] == ["fake"]
        assert (await client.models.retrieve("fake")).id == "fake"


async def test_sync_client() -> None:
    def talk(base: str) -> tuple[str | None, str]:
        with OpenAI(base_url=base + "/v1", api_key="x") as client:
            plain = client.chat.completions.create(model="fake", messages=MESSAGES).choices[0].message.content
            stream = client.chat.completions.create(model="fake", messages=MESSAGES, stream=True)
            return plain, "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)

    async with live(make_state(talkative())) as base:
        assert await asyncio.to_thread(talk, base) == (SAID, SAID)


async def test_errors_are_the_clients_own_classes() -> None:
    state = make_state(talkative(), api={"api_keys": ()})
    async with live(state) as base, AsyncOpenAI(base_url=base + "/v1", api_key="x", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="nope", messages=MESSAGES)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as long:
            await client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "x" * 999}])
        assert long.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError) as wrong:
            await client.chat.completions.create(model="fake", messages=MESSAGES, temperature=9, stream=True)
        assert wrong.value.param == "temperature"


async def test_a_client_that_closes_its_stream_stops_the_work() -> None:
    backend = FakeBackend(manual=True)
    state = make_state(backend)
    async with live(state) as base, AsyncOpenAI(base_url=base + "/v1", api_key="x") as client:
        stream = await client.chat.completions.create(model="fake", messages=MESSAGES, stream=True)
        await until(lambda: backend.load().running == 1)
        backend.step()
        await anext(aiter(stream))
        await stream.close()
        await until(lambda: state.pipeline.running == 0)
        assert backend.load().running == 0
