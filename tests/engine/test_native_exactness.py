"""The promise on real arithmetic: tokens and log-probabilities are the same bits alone, in any batch, with any
chunking, with and without a prefix hit, after preemption, and with any number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest

from tailrace import _native
from tailrace.clock import SystemClock
from tailrace.config import EngineConfig
from tailrace.engine.build import build_engine
from tailrace.engine.parts import EngineParts
from tailrace.engine.step_draft import StepDraft
from tailrace.types import GenerateRequest, SamplingParams
from tests.engine.support import Rig, prompt, request
from tests.tiny import write_tiny_gguf

BLOCK = 64 * 2 * 2 * 32 * 2  # bytes: tokens, layers, K and V, one head of 32, bf16
BLOCK_BYTES = {"bf16": BLOCK, "int8": 64 * 2 * 2 * (32 + 4)}
Variant = tuple[str, str]  # kernels, and what the KV cache stores
Bits = list[tuple[list[int], list[float | None]]]

VARIED = SamplingParams(
    temperature=0.9, top_k=40, top_p=0.95, min_p=0.01, typical_p=0.9, presence_penalty=0.3, frequency_penalty=0.2,
    repetition_penalty=1.1, logit_bias=((40, -1.5), (41, 2.0)), seed=11, logprobs=2,
)  # fmt: skip
GREEDY = SamplingParams(temperature=0.0, logprobs=0)
RESTRICTED = replace(VARIED, allowed_token_ids=tuple(range(20, 200)), bad_words=((40,), (41, 42), (60, 61, 62)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model file, and the packed weights after the first engine."""
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_gguf(folder / "tiny.gguf")
    return folder


@pytest.fixture(scope="module", params=product(_native.test_variants(), BLOCK_BYTES), ids="-".join)
def variant(request: pytest.FixtureRequest) -> Iterator[Variant]:
    yield request.param


def engine(folder: Path, variant: Variant, *, blocks: int = 400, **settings: object) -> EngineParts:
    chosen = {"threads": 1, "chunk_tokens": 512} | settings
    isa, kv = variant
    config = EngineConfig(isa=isa, kv=kv, kv_memory=blocks * BLOCK_BYTES[kv], **chosen)  # type: ignore[arg-type]
    return build_engine(folder / "tiny.gguf", config, SystemClock(), cache_dir=folder / "cache")


def wanted() -> list[GenerateRequest]:
    """Prompts around block and segment boundaries, greedy and sampled."""
    lengths = (1, 5, 63, 64, 65, 130, 257, 300)
    some = VARIED, RESTRICTED
    return [
        request(f"r{i}", prompt(length, i), 24, sampling=GREEDY if i % 2 else replace(some[i % 4 // 2], seed=i))
        for i, length in enumerate(lengths)
    ]


def bits(rig: Rig, requests: list[GenerateRequest]) -> Bits:
    return [(rig.tokens(one.id), rig.choice(one.id).logprobs) for one in requests]


@pytest.fixture(scope="module")
def alone(folder: Path, variant: Variant) -> Bits:
    """Each request by itself: one thread, one chunk, nothing cached."""
    rig = Rig(engine(folder, variant, prefix_cache=False))
    for one in wanted():
        rig.run(one)
    found = bits(rig, wanted())
    assert all(len(tokens) == len(logprobs) == 24 for tokens, logprobs in found)
    assert len({token for tokens, _ in found for token in tokens}) > 20, "the answers vary"
    return found


def test_restricted_answers_hold_only_what_is_allowed(alone: Bits) -> None:
    for tokens, _ in (alone[2], alone[6]):
        assert set(tokens) <= set(range(20, 200)) - {40}
        assert not {(41, 42)} & set(pairwise(tokens))


@pytest.mark.parametrize("threads", [1, 2])
def test_in_a_batch_of_32(folder: Path, variant: Variant, threads: int, alone: Bits) -> None:
    others = [request(f"o{i}", prompt(20 + 7 * i, 50 + i), 30, sampling=replace(VARIED, seed=i)) for i in range(24)]
    rig = Rig(engine(folder, variant, threads=threads))
    rig.run(*[one for pair in zip(others[:8], wanted(), strict=True) for one in pair], *others[8:])
    assert bits(rig, wanted()) == alone


@pytest.mark.parametrize("chunk", [16, 64, 512])
def test_with_any_chunk(folder: Path, variant: Variant, chunk: int, alone: Bits) -> None:
    rig = Rig(engine(folder, variant, chunk_tokens=chunk)).run(*wanted())
    assert bits(rig, wanted()) == alone


def test_with_a_prefix_hit(folder: Path, variant: Variant, alone: Bits) -> None:
    rig = Rig(engine(folder, variant))
    rig.run(*[replace(one, id=f"warm {one.id}", sampling=GREEDY) for one in wanted()])
    rig.run(*wanted())
    assert [rig.events[one.id][0].cached_tokens for one in wanted()] == [0, 0, 0, 0, 64, 128, 256, 256]
    assert bits(rig, wanted()) == alone


def test_after_preemption(folder: Path, variant: Variant, alone: Bits) -> None:
    """Every fifth step somebody loses all blocks, in prefill or decode, and the cache is emptied."""
    rig = Rig(engine(folder, variant, chunk_tokens=100))
    rig.submit(*wanted())
    turn = 0
    while rig.scheduler.has_work:
        turn += 1
        rig.step()
        if turn % 5 == 0 and rig.scheduler.running:
            rig.scheduler._preempt(StepDraft(), rig.scheduler.running[turn // 5 % len(rig.scheduler.running)], "test")
            rig.scheduler.kv.clear_cache()
    facts = [rig.choice(one.id).ends[0].facts for one in wanted()]
    assert sum(fact.preemptions > 0 for fact in facts if fact) >= 5
    assert rig.loop.stats.recomputed_tokens > 200
    assert bits(rig, wanted()) == alone


def test_choices_are_as_if_alone(folder: Path, variant: Variant) -> None:
    """Choice i of n has the bits of choice i of any other n, forked inside a block."""
    one = request(tokens=70, max_tokens=40, sampling=VARIED)
    rig = Rig(engine(folder, variant)).run(replace(one, id="two", n=2), replace(one, id="four", n=4))
    for index in range(2):
        assert rig.tokens("two", index) == rig.tokens("four", index)
    assert len({tuple(rig.tokens("four", index)) for index in range(4)}) == 4


@pytest.mark.parametrize("chunk", [16, 512])
def test_prompt_logprobs_are_those_of_generation(folder: Path, variant: Variant, chunk: int) -> None:
    """A greedy answer given as a prompt gets the log-probabilities that it was generated with."""
    first = Rig(engine(folder, variant)).run(request(tokens=60, max_tokens=40, sampling=replace(GREEDY, logprobs=1)))
    conversation = np.concatenate([prompt(60), np.array(first.tokens(), np.int32)])
    rig = Rig(engine(folder, variant, chunk_tokens=chunk))
    rig.run(request("echo", conversation, 0, prompt_logprobs=1))
    scores = rig.events["echo"][0].prompt_logprobs
    assert scores is not None
    assert [score.logprob for score in scores[60:]] == first.choice().logprobs
    assert all(score.top[0][0] == score.token_id for score in scores[60:])
    assert scores[0].logprob is None
    assert all(score.logprob <= 0 for score in scores[1:] if score.logprob is not None)
