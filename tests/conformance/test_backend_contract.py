"""What every backend promises, run against each: the fake, the fake behind a wrapper, the engine without weights, and
the engine with a tiny model on the real kernels."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailrace.backends.base import Backend
from tailrace.backends.engine import EngineBackend
from tailrace.backends.fake import FakeBackend
from tailrace.backends.faulty import FaultyBackend
from tailrace.clock import SystemClock
from tailrace.config import EngineConfig
from tailrace.engine.build import build_engine
from tailrace.engine.parts import EngineParts
from tailrace.errors import InvalidRequest, RequestError, Unsupported
from tailrace.types import (
    FinishReason,
    GenerateRequest,
    Grammar,
    GrammarKind,
    SamplingParams,
    StopConditions,
    TokenEvent,
)
from tests.engine.gate import Gate
from tests.engine.support import parts
from tests.serving import until
from tests.tiny import write_tiny_gguf

SLOTS, CONTEXT = 4, 512
Factory = Callable[[], Backend]


@pytest.fixture
def gate() -> Gate:
    """Open. Fakes need none: they move only when the test's own loop turns."""
    return Gate()


@contextmanager
def started(engine: EngineParts, gate: Gate) -> Iterator[EngineBackend]:
    backend = EngineBackend(engine, "m", SystemClock())
    gate.hold(backend.engine)
    backend.start()
    try:
        yield backend
    finally:
        backend.close()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(params=["fake", "wrapped", "engine", "native"])
async def backend(request: pytest.FixtureRequest, tiny: Path, gate: Gate) -> AsyncIterator[Backend]:
    kind = request.param
    if kind == "fake":
        yield FakeBackend(max_context=CONTEXT, max_sequences=SLOTS)
    elif kind == "wrapped":
        yield FaultyBackend(FakeBackend(max_context=CONTEXT, max_sequences=SLOTS), lambda request: None)
    elif kind == "engine":
        with started(parts(blocks=40, slots=SLOTS, context=CONTEXT), gate) as made:
            yield made
    else:
        config = EngineConfig(threads=1, max_sequences=SLOTS, max_context=CONTEXT, kv_memory=2**20, chunk_tokens=128)
        with started(build_engine(tiny, config, SystemClock(), cache_dir=tiny.parent), gate) as made:
            yield made


GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(seed=11)


def ask(id: str = "r", prompt: int = 20, tokens: int = 6, **fields: Any) -> GenerateRequest:
    ids = np.random.default_rng(prompt).integers(3, 200, prompt).astype(np.int32)
    fields = {"sampling": GREEDY, "stop": StopConditions(tokens, ignore_eos=True)} | fields
    return GenerateRequest(id, "m", ids, **fields)


@dataclass
class Read:
    """One choice as a client would see it."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: int = 0
    first: TokenEvent | None = None
    last: TokenEvent | None = None


async def read(backend: Backend, request: GenerateRequest) -> dict[int, Read]:
    choices: dict[int, Read] = {}
    async for batch in backend.generate(request):
        assert batch, "a batch is never empty"
        for event in batch:
            choice = choices.setdefault(event.index, Read())
            assert choice.last is None, "nothing follows the end of a choice"
            choice.first = choice.first or event
            choice.text += event.text
            choice.tokens += event.token_ids
            choice.logprobs += len(event.logprobs)
            if event.finish is not None:
                choice.last = event
    assert all(choice.last is not None for choice in choices.values()), "every choice ends"
    return choices


def idle(backend: Backend) -> bool:
    load = backend.load()
    return (load.running, load.waiting, load.free_slots) == (
        0,
        0,
        SLOTS,
    ) and load.kv_blocks_free == load.kv_blocks_total


async def test_what_it_says_about_itself(backend: Backend) -> None:
    assert backend.name
    assert backend.caps.models
    assert (backend.caps.max_context, backend.caps.max_sequences) == (CONTEXT, SLOTS)
    assert (await backend.health()).ok
    assert idle(backend)


@pytest.mark.parametrize("tokens", [1, 6])
async def test_exactly_the_tokens_asked_for(backend: Backend, tokens: int) -> None:
    choice = (await read(backend, ask(tokens=tokens)))[0]
    assert len(choice.tokens) == tokens
    assert choice.last is not None
    assert choice.last.finish is FinishReason.LENGTH
    assert choice.last.stop_reason is None
    await until(lambda: idle(backend))


async def test_nothing_to_generate(backend: Backend) -> None:
    choice = (await read(backend, ask(tokens=0)))[0]
    assert (choice.tokens, choice.text) == ([], "")
    assert choice.last is not None
    assert choice.last.finish is FinishReason.LENGTH


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED])
async def test_the_same_request_has_the_same_answer(backend: Backend, sampling: SamplingParams) -> None:
    first, second = [await read(backend, ask(id, sampling=sampling, n=2)) for id in ("a", "b")]
    assert [first[i].tokens for i in (0, 1)] == [second[i].tokens for i in (0, 1)]
    assert [first[i].text for i in (0, 1)] == [second[i].text for i in (0, 1)]
    if sampling is SEEDED:
        assert first[0].tokens != first[1].tokens


async def test_company_changes_nothing(backend: Backend) -> None:
    alone = await read(backend, ask("alone", 33, 12, sampling=SEEDED))
    requests = [ask(f"r{i}", 30 + i, 12, sampling=SEEDED) for i in range(8)]
    together = await asyncio.gather(*(read(backend, request) for request in requests))
    assert together[3][0].tokens == alone[0].tokens
    await until(lambda: idle(backend))


async def test_a_stop_token_is_counted_and_reported_and_not_shown(backend: Backend) -> None:
    tokens = (await read(backend, ask("a", tokens=8)))[0].tokens
    target = tokens[4]
    stop = StopConditions(8, token_ids=(target,), ignore_eos=True)
    choice = (await read(backend, ask("b", stop=stop)))[0]
    assert choice.tokens == tokens[: tokens.index(target) + 1]
    assert choice.last is not None
    assert (choice.last.finish, choice.last.stop_reason) == (FinishReason.STOP, target)


async def test_a_stop_string_ends_before_itself(backend: Backend) -> None:
    plain = (await read(backend, ask("a", tokens=24)))[0].text
    target = plain[len(plain) // 2 :][:2]
    stop = StopConditions(24, strings=(target,), ignore_eos=True)
    choice = (await read(backend, ask("b", stop=stop)))[0]
    assert choice.text == plain[: plain.index(target)]
    assert choice.last is not None
    assert (choice.last.finish, choice.last.stop_reason) == (FinishReason.STOP, target)


async def test_logprobs_come_with_every_token(backend: Backend) -> None:
    choices = await read(backend, ask(n=2, sampling=replace(SEEDED, logprobs=3)))
    assert [(c.logprobs, len(c.tokens)) for c in choices.values()] == [(6, 6), (6, 6)]
    assert (await read(backend, ask("b")))[0].logprobs == 0


async def test_prompt_logprobs(backend: Backend) -> None:
    request = ask(prompt=100, tokens=0, prompt_logprobs=1, sampling=replace(GREEDY, logprobs=1))
    for id in ("a", "b"):  # the second time nothing of the prompt may be skipped
        first = (await read(backend, replace(request, id=id)))[0].first
        assert first is not None
        assert first.prompt_logprobs is not None
        assert [entry.token_id for entry in first.prompt_logprobs] == request.prompt.tolist()
        assert first.prompt_logprobs[0].logprob is None
        assert all(entry.logprob is not None and entry.logprob <= 0 for entry in first.prompt_logprobs[1:])


async def test_a_prompt_seen_before_is_found(backend: Backend) -> None:
    request = ask("a", prompt=200)
    assert backend.match_prefix(request.prompt) == 0
    first = (await read(backend, request))[0]
    assert first.first is not None
    assert first.first.cached_tokens == 0
    assert 0 < backend.match_prefix(request.prompt) < 200
    again = (await read(backend, replace(request, id="b")))[0]
    assert again.first is not None
    assert again.first.cached_tokens == backend.match_prefix(request.prompt)
    assert again.tokens == first.tokens
    assert backend.match_prefix(request.prompt, b"other") == 0
    salted = (await read(backend, replace(request, id="c", salt=b"other")))[0]
    assert salted.first is not None
    assert salted.first.cached_tokens == 0


async def test_an_answer_follows_its_grammar_or_the_request_is_refused(backend: Backend) -> None:
    grammar = Grammar(GrammarKind.REGEX, "[xyz]{3,9}!", "guided_regex")
    request = ask(n=2, sampling=SEEDED, stop=StopConditions(40), grammar=grammar)
    if "grammar" not in backend.caps.features:
        with pytest.raises(Unsupported) as caught:
            await backend.check(request)
        assert caught.value.param == "guided_regex"
        return
    await backend.check(request)
    for choice in (await read(backend, request)).values():
        assert re.fullmatch("[xyz]{3,9}!", choice.text)
        assert choice.last is not None
        assert choice.last.finish is FinishReason.STOP
    with pytest.raises(InvalidRequest) as refused:
        await backend.check(replace(request, grammar=replace(grammar, source="(")))
    assert refused.value.param == "guided_regex"


async def test_facts_come_with_the_end(backend: Backend) -> None:
    for choice in (await read(backend, ask(n=2))).values():
        assert choice.last is not None
        facts = choice.last.facts
        assert facts is not None
        assert facts.started is not None
        assert facts.first_token is not None
        assert facts.started <= facts.first_token <= facts.finished
        assert facts.computed_prompt_tokens + facts.cached_tokens == 20


@pytest.mark.parametrize("request_", [ask(prompt=CONTEXT, tokens=1), ask(prompt=10, tokens=CONTEXT), ask(n=SLOTS + 1)])
async def test_what_can_never_run_is_refused_at_once(backend: Backend, request_: GenerateRequest) -> None:
    with pytest.raises(RequestError):
        await read(backend, request_)
    assert idle(backend)


async def test_the_whole_context_can_be_used(backend: Backend) -> None:
    choice = (await read(backend, ask(prompt=CONTEXT - 1, tokens=1)))[0]
    assert len(choice.tokens) == 1


@pytest.mark.parametrize("after", [1, 3])
async def test_closing_early_frees_everything(backend: Backend, gate: Gate, after: int) -> None:
    with gate.closed():
        stream = backend.generate(ask(tokens=400, n=2))
        for _ in range(after):
            gate.let(1)
            await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
    await until(lambda: idle(backend))
    await until(lambda: backend.load().aborts > 0)
    assert backend.load().abort_seconds >= 0


async def test_a_reader_that_is_cancelled_frees_everything(backend: Backend, gate: Gate) -> None:
    with gate.closed():
        task = asyncio.create_task(read(backend, ask(tokens=490)))
        await until(lambda: backend.load().running == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await until(lambda: idle(backend))
    assert backend.load().aborts == 1


async def test_abort_ends_every_choice(backend: Backend, gate: Gate) -> None:
    with gate.closed():
        task = asyncio.create_task(read(backend, ask("gone", tokens=490, n=2)))
        await until(lambda: backend.load().running == 2)
        await backend.abort("unknown")
        await backend.abort("gone")
    choices = await task
    assert {choice.last.finish for choice in choices.values() if choice.last} == {FinishReason.ABORT}
    await until(lambda: idle(backend))


async def test_load_counts_what_was_accepted(backend: Backend, gate: Gate) -> None:
    with gate.closed():
        tasks = [asyncio.create_task(read(backend, ask(f"r{i}", tokens=300))) for i in range(SLOTS)]
        await until(lambda: backend.load().running + backend.load().waiting == SLOTS)
        assert backend.load().free_slots == 0
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await until(lambda: idle(backend))


async def test_room_is_announced(backend: Backend) -> None:
    announced: list[int] = []
    backend.on_room(lambda: announced.append(backend.load().free_slots))
    await read(backend, ask())
    await until(lambda: bool(announced))
    assert announced[-1] == SLOTS


async def test_draining_lets_running_requests_finish(backend: Backend, gate: Gate) -> None:
    with gate.closed():
        task = asyncio.create_task(read(backend, ask(tokens=30)))
        await until(lambda: backend.load().running == 1)
        drain = asyncio.create_task(backend.drain(60))
        await asyncio.sleep(0)  # it has begun to wait
    await drain
    choice = (await task)[0]
    assert len(choice.tokens) == 30


async def test_draining_ends_what_takes_too_long(backend: Backend, gate: Gate) -> None:
    with gate.closed():
        task = asyncio.create_task(read(backend, ask(tokens=490)))
        await until(lambda: backend.load().running == 1)
        drain = asyncio.create_task(backend.drain(0))
        await until(lambda: drain.done() or gate.aborts)  # its time is up, and the engine has been told
    await drain
    choice = (await task)[0]
    assert choice.last is not None
    assert choice.last.finish is FinishReason.ABORT
    await until(lambda: idle(backend))
