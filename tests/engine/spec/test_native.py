"""The promise on real arithmetic: with guesses, right ones and wrong ones, every answer has the bits it has without."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tailrace import _native
from tailrace.clock import ManualClock
from tailrace.config import EngineConfig
from tailrace.engine.build import build_engine
from tailrace.engine.grammar.drafter import GrammarDrafter
from tailrace.engine.parts import EngineParts
from tailrace.engine.sequence import Sequence
from tailrace.engine.spec.both import ModelDrafter
from tailrace.engine.step import Work
from tailrace.engine.step_draft import StepDraft
from tailrace.types import GenerateRequest, SamplingParams, StopConditions
from tests.engine.support import VOCAB, Rig, prompt, request
from tests.tiny import write_tiny_gguf

BLOCK = 64 * 2 * 2 * 32 * 2  # bytes: tokens, layers, K and V, one head of 32, bf16
TOKENS = 40
GREEDY = SamplingParams(temperature=0.0, logprobs=0)
PENALISED = SamplingParams(
    temperature=0.9, top_k=40, top_p=0.95, min_p=0.01, presence_penalty=0.3, frequency_penalty=0.2,
    repetition_penalty=1.1, logit_bias=((40, -1.5), (41, 2.0)), seed=11, logprobs=2,
)  # fmt: skip
Said = dict[tuple[str, int], object]


class Recorded:
    """Guesses what an engine without guesses said, with a wrong token now and then."""

    def __init__(self, said: dict[tuple[str, int], list[int]]) -> None:
        self._said = said
        self._rng = np.random.default_rng(5)

    def draft(self, sequences: Seq[Sequence], work: Work) -> list[list[int]]:
        return [self._guesses(sequence) for sequence in sequences]

    def _guesses(self, sequence: Sequence) -> list[int]:
        said = self._said.get((sequence.group.request.id, sequence.index), [])
        size = int(self._rng.integers(0, 10))
        truth = said[sequence.generated :][:size]
        return [token if self._rng.integers(100) < 85 else (token + 1) % VOCAB for token in truth]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_gguf(folder / "tiny.gguf")
    return folder


@pytest.fixture(scope="module", params=_native.test_variants())
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param


def engine(folder: Path, variant: str, *, draft: Path | None = None, **settings: object) -> EngineParts:
    """On a clock that stands still: every guess is worth its row."""
    chosen = {"threads": 1, "chunk_tokens": 512, "speculate": "off"} | settings
    config = EngineConfig(isa=variant, kv_memory=400 * BLOCK, **chosen)  # type: ignore[arg-type]
    return build_engine(folder / "tiny.gguf", config, ManualClock(), draft=draft, cache_dir=folder / "cache")


def wanted() -> list[GenerateRequest]:
    """Around block and segment boundaries: greedy, seeded, penalised, biased, forked, stopped by text and by token."""
    stop = StopConditions(max_tokens=TOKENS, ignore_eos=True)
    late = StopConditions(max_tokens=TOKENS, min_tokens=15, token_ids=tuple(range(3, 40)))
    return [
        request("greedy", prompt(130), stop=stop, sampling=GREEDY),
        request("seeded", prompt(63, 1), stop=stop, sampling=SamplingParams(temperature=0.7, seed=3, logprobs=3)),
        request("penalised", prompt(64, 2), stop=stop, sampling=PENALISED),
        request("choices", prompt(70, 3), stop=stop, sampling=replace(PENALISED, seed=4, logprobs=None), n=3),
        request("stopped", prompt(257, 4), stop=late, sampling=replace(PENALISED, repetition_penalty=1.0)),
        request("text", prompt(5, 5), stop=replace(stop, strings=("e", "th")), sampling=replace(GREEDY, logprobs=1)),
        request("scored", prompt(190, 6), stop=stop, sampling=GREEDY, prompt_logprobs=1),
    ]


def said(rig: Rig) -> Said:
    """Everything a reader gets, token by token, whatever steps it came in."""
    found: Said = {}
    for (name, index), choice in rig.choices.items():
        events = [event for event in rig.events[name] if event.index == index]
        logprobs = [entry for event in events for entry in event.logprobs]
        scores = [event.prompt_logprobs for event in events if event.prompt_logprobs]
        (end,) = choice.ends
        found[name, index] = (choice.tokens, choice.text, logprobs, scores, end.finish, end.stop_reason)
    return found


@pytest.fixture(scope="module")
def plain(folder: Path, variant: str) -> Rig:
    """Without guesses, each request by itself."""
    rig = Rig(engine(folder, variant, prefix_cache=False))
    for one in wanted():
        rig.run(one)
    assert rig.loop.stats.drafted_tokens == 0
    assert len(rig.tokens("stopped")) < TOKENS
    assert len(rig.tokens("text")) < TOKENS
    return rig


def told(folder: Path, variant: str, plain: Rig, **settings: object) -> Rig:
    parts = engine(folder, variant, **settings)
    parts.scheduler.drafter = Recorded({name: choice.tokens for name, choice in plain.choices.items()})
    return Rig(parts)


@pytest.mark.parametrize(("threads", "chunk"), [(1, 512), (2, 16)])
def test_in_one_batch(folder: Path, variant: str, plain: Rig, threads: int, chunk: int) -> None:
    rig = told(folder, variant, plain, threads=threads, chunk_tokens=chunk).run(*wanted())
    assert said(rig) == said(plain)
    stats = rig.loop.stats
    assert 100 < stats.accepted_tokens < stats.drafted_tokens


def test_one_by_one_and_again_on_what_that_left_in_the_cache(folder: Path, variant: str, plain: Rig) -> None:
    """A rejected guess in a cached block would show here: conversations go on from what was decoded with guesses."""
    rig = told(folder, variant, plain)
    for one in wanted():
        rig.run(one)
    assert said(rig) == said(plain)
    longer = [
        request(f"more {one.id}", np.concatenate([one.prompt, np.array(plain.tokens(one.id), np.int32), prompt(9, 8)]))
        for one in wanted()
    ]
    fresh = Rig(engine(folder, variant, prefix_cache=False)).run(*longer)
    rig.run(*longer)
    assert any(rig.events[one.id][0].cached_tokens > len(wanted()[i].prompt) for i, one in enumerate(longer))
    assert [rig.tokens(one.id) for one in longer] == [fresh.tokens(one.id) for one in longer]


def test_under_preemption(folder: Path, variant: str, plain: Rig) -> None:
    rig = told(folder, variant, plain, chunk_tokens=100)
    rig.submit(*wanted())
    turn = 0
    while rig.scheduler.has_work:
        turn += 1
        rig.step()
        if turn % 3 == 0 and rig.scheduler.running:
            rig.scheduler._preempt(StepDraft(), rig.scheduler.running[turn // 3 % len(rig.scheduler.running)], "test")
            rig.scheduler.kv.clear_cache()
    assert rig.loop.stats.recomputed_tokens > 200
    assert said(rig) == said(plain)


def test_prompt_lookup(folder: Path, variant: str) -> None:
    """The drafter of the engine, on prompts and answers that repeat themselves."""
    text = np.tile(prompt(20), 8)
    many = [
        request(f"r{i}", text[: 90 + i], 120, sampling=SamplingParams(temperature=0.3 * (i % 2), seed=i, logprobs=1))
        for i in range(4)
    ]
    without = Rig(engine(folder, variant)).run(*many)
    with_lookup = Rig(engine(folder, variant, speculate="lookup"))
    for one in many:
        with_lookup.run(one)
    assert said(with_lookup) == said(without)
    assert with_lookup.loop.stats.accepted_tokens > 20


@pytest.mark.parametrize(("layers", "chunk"), [(1, 512), (2, 64)])
def test_a_draft_model(folder: Path, variant: str, plain: Rig, layers: int, chunk: int) -> None:
    """A copy without the last layer is sometimes right, a whole copy always where nothing is penalised."""
    draft = write_tiny_gguf(folder / f"{layers} layers.gguf", layers=layers)
    rig = Rig(engine(folder, variant, speculate="auto", chunk_tokens=chunk, draft=draft))
    rig.run(*wanted())
    again = Rig(engine(folder, variant, speculate="auto", threads=2, draft=draft))
    for one in wanted():
        again.run(one)
    assert said(rig) == said(again) == said(plain)
    for stats in (rig.loop.stats, again.loop.stats):
        assert stats.accepted_tokens > (100 if layers == 2 else 0)
    around = rig.scheduler.drafter
    assert isinstance(around, GrammarDrafter)
    assert isinstance(around.inner, ModelDrafter)
    assert around.inner._model is not None, "it did not fail"
