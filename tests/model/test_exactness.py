"""The promise of exactness on the default model and the kernels that serve it: the same bits alone, in any batch, with
any chunking, with and without a prefix hit, after preemption, and with 1 and 2 threads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tailrace import _native
from tailrace.clock import ManualClock, SystemClock
from tailrace.config import EngineConfig
from tailrace.engine.build import assemble
from tailrace.engine.step_draft import StepDraft
from tailrace.text.tokenizer import Tokenizer
from tailrace.types import GenerateRequest, SamplingParams
from tests.engine.support import Rig, request
from tests.model.conftest import Load
from tests.model.numbers import Ids, evaluation_ids

BLOCKS = 160
TOKENS = 16  # in an answer
LENGTHS = (1, 17, 63, 64, 65, 130, 200, 257)  # around blocks, chunks and segments
GREEDY = SamplingParams(temperature=0.0, logprobs=0)
SAMPLED = SamplingParams(
    temperature=0.9, top_k=50, top_p=0.95, min_p=0.01, presence_penalty=0.2, repetition_penalty=1.1, logprobs=1
)
Bits = list[tuple[list[int], list[float | None]]]


@pytest.fixture(scope="module")
def text(smollm2: Tokenizer) -> Ids:
    return evaluation_ids(smollm2)


@pytest.fixture(scope="module")
def wanted(text: Ids) -> list[GenerateRequest]:
    """Passages of the fixed text to go on from, greedy and sampled in turn."""
    return [
        request(f"r{i}", text[170 * i :][:length], TOKENS, sampling=GREEDY if i % 2 else replace(SAMPLED, seed=i))
        for i, length in enumerate(LENGTHS)
    ]


def rig(load: Load, *, threads: int = 2, **settings: object) -> Rig:
    loaded = load("auto", "auto", threads)
    memory = BLOCKS * _native.KvCache.bytes_per_block(loaded.native_spec)
    config = EngineConfig(kv_memory=memory, **({"chunk_tokens": 512} | settings))  # type: ignore[arg-type]
    return Rig(assemble(loaded, Tokenizer.from_gguf(loaded.metadata), config, SystemClock()))


def bits(rig: Rig, requests: list[GenerateRequest]) -> Bits:
    return [(rig.tokens(one.id), rig.choice(one.id).logprobs) for one in requests]


@pytest.fixture(scope="module")
def alone(load: Load, wanted: list[GenerateRequest]) -> Bits:
    """Each request by itself: one thread, one chunk, nothing cached."""
    by_itself = rig(load, threads=1, prefix_cache=False)
    for one in wanted:
        by_itself.run(one)
    found = bits(by_itself, wanted)
    assert all(len(tokens) == len(logprobs) == TOKENS for tokens, logprobs in found)
    assert len({token for tokens, _ in found for token in tokens}) > 50, "the answers vary"
    return found


@pytest.mark.parametrize("threads", [1, 2])
def test_in_a_batch_of_32(load: Load, text: Ids, wanted: list[GenerateRequest], alone: Bits, threads: int) -> None:
    others = [
        request(f"o{i}", text[80 * i :][: 8 + 3 * i], TOKENS, sampling=replace(SAMPLED, seed=i)) for i in range(24)
    ]
    batch = rig(load, threads=threads)
    batch.submit(*[one for pair in zip(others[:8], wanted, strict=True) for one in pair], *others[8:])
    most = 0
    while batch.scheduler.has_work:
        batch.step()
        most = max(most, len(batch.scheduler.running))
    assert most == 32
    assert bits(batch, wanted) == alone


@pytest.mark.parametrize("chunk", [16, 64, 512])
def test_with_any_chunk(load: Load, wanted: list[GenerateRequest], alone: Bits, chunk: int) -> None:
    assert bits(rig(load, chunk_tokens=chunk).run(*wanted), wanted) == alone


def test_with_a_prefix_hit(load: Load, wanted: list[GenerateRequest], alone: Bits) -> None:
    warm = rig(load)
    warm.run(
        *[replace(one, id=f"warm {one.id}", sampling=GREEDY, stop=replace(one.stop, max_tokens=1)) for one in wanted]
    )
    warm.run(*wanted)
    assert [warm.events[one.id][0].cached_tokens for one in wanted] == [0, 0, 0, 0, 64, 128, 192, 256]
    assert bits(warm, wanted) == alone


def test_after_preemption(load: Load, wanted: list[GenerateRequest], alone: Bits) -> None:
    """Every fourth step somebody loses all blocks, in prefill or decode, and the cache is emptied."""
    robbed = rig(load, chunk_tokens=100)
    robbed.submit(*wanted)
    turn = 0
    while robbed.scheduler.has_work:
        turn += 1
        robbed.step()
        running = robbed.scheduler.running
        if turn % 4 == 0 and running:
            robbed.scheduler._preempt(StepDraft(), running[turn // 4 % len(running)], "test")
            robbed.scheduler.kv.clear_cache()
    facts = [robbed.choice(one.id).ends[0].facts for one in wanted]
    assert sum(fact.preemptions > 0 for fact in facts if fact) >= 4
    assert robbed.loop.stats.recomputed_tokens > 100
    assert bits(robbed, wanted) == alone


def test_with_prompt_lookup(load: Load, text: Ids) -> None:
    """Guesses are verified in the step that computes them; a passage given twice makes some of them right."""
    repeated = np.concatenate([text[:60], text[:40]])
    more = [
        request("greedy", repeated, 30, sampling=GREEDY),
        request("sampled", repeated, 30, sampling=replace(SAMPLED, temperature=0.3, presence_penalty=0.0, seed=5), n=2),
    ]
    off, lookup = rig(load, speculate="off").run(*more), rig(load, speculate="lookup")
    for one in more:
        lookup.run(one)
    assert lookup.tokens("sampled", 1) == off.tokens("sampled", 1)
    assert bits(lookup, more) == bits(off, more)
    assert lookup.loop.stats.accepted_tokens > 10


def test_with_itself_as_a_draft_model(load: Load, alone: Bits, wanted: list[GenerateRequest]) -> None:
    """The best draft model there is; on a clock that stands still, so that it is always asked."""
    loaded = load("auto", "auto", 2)
    memory = BLOCKS * 2 * _native.KvCache.bytes_per_block(loaded.native_spec)
    config = EngineConfig(kv_memory=memory, chunk_tokens=512)
    drafting = Rig(assemble(loaded, loaded.checkpoint.tokenizer(), config, ManualClock(), draft=loaded))
    drafting.run(*wanted)
    assert bits(drafting, wanted) == alone
    assert drafting.loop.stats.accepted_tokens > 20
