"""AsyncEngine over a tiny model: streams, their early ends, and life around them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from tailrace import LLM, AsyncEngine, SamplingParams
from tailrace.errors import ConfigError, InvalidRequest, Unavailable
from tests.engine.gate import Gate
from tests.serving import until

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture
async def engine(tiny: Path, settings: dict[str, Any]) -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine(tiny, **settings) as engine:
        yield engine


async def test_streamed_text_is_the_whole_answer_and_equals_llm(engine: AsyncEngine, llm: LLM) -> None:
    events = [event async for event in engine.generate("hello world", GREEDY, n=2, seed=3, temperature=1)]
    expected = llm.generate("hello world", GREEDY, n=2, seed=3, temperature=1)[0].outputs
    for output in expected:
        mine = [event for event in events if event.index == output.index]
        assert "".join(event.text for event in mine) == output.text
        assert [event.finish for event in mine if event.finish] == ["length"]


async def test_chat_streams_and_completes_alike(engine: AsyncEngine) -> None:
    messages = [{"role": "user", "content": "hello"}]
    texts = [event.text async for event in engine.chat(messages, GREEDY)]
    whole = await engine.complete_chat(messages, GREEDY)
    assert "".join(texts) == whole.text
    assert whole.prompt == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


async def test_many_at_once(engine: AsyncEngine, llm: LLM) -> None:
    prompts = [[5 + i] * (i + 1) for i in range(12)]
    done = await asyncio.gather(*[engine.complete(prompt, GREEDY) for prompt in prompts])
    assert [c.token_ids for c in done] == [c.token_ids for c in llm.generate(prompts, GREEDY)]


async def test_leaving_a_stream_frees_the_engine(engine: AsyncEngine) -> None:
    backend, gate = engine._running.model.backend, Gate()
    gate.hold(backend.engine)
    with gate.closed():
        gate.let(1)
        async with aclosing(engine.generate("hello", max_tokens=2000, ignore_eos=True)) as stream:
            async for _ in stream:
                break
    await until(lambda: backend.load().aborts == 1)
    with gate.closed():
        task = asyncio.create_task(engine.complete("hello", max_tokens=2000, ignore_eos=True))
        await until(lambda: backend.load().running == 1)
        task.cancel()
        await until(task.done)
    await until(lambda: backend.load().aborts == 2)
    assert backend.load().running == 0


async def test_bad_requests_raise_when_called(engine: AsyncEngine) -> None:
    with pytest.raises(InvalidRequest, match="prompt has no tokens"):
        engine.generate("")
    with pytest.raises(InvalidRequest, match="messages: messages must hold at least one message"):
        engine.chat([])
    with pytest.raises(InvalidRequest, match="temperature"):
        await engine.complete("hello", temperature=-1)


async def test_closing_ends_what_runs(tiny: Path, settings: dict[str, Any]) -> None:
    engine = AsyncEngine(tiny, **settings)
    await engine.start()
    await engine.start()
    assert (engine.model, engine.max_context) == ("tiny", 2048)
    assert (await engine.health()).ok
    gate, loop = Gate(), engine._running.model.backend.engine
    gate.hold(loop)
    with gate.closed():
        gate.let(1)
        stream = engine.generate("hello", max_tokens=2000, ignore_eos=True)
        await anext(stream)
        closing = asyncio.create_task(engine.close())
        await until(lambda: loop._stopping)
    await closing
    with pytest.raises(Unavailable, match="closed before this answer ended"):
        async for _ in stream:
            pass
    await engine.close()
    with pytest.raises(Unavailable, match="not running"):
        engine.generate("hello")


async def test_settings_are_checked_at_once(tiny: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine\.weights = 'int3'"):
        AsyncEngine(tiny, weights="int3")
