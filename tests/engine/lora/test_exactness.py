"""Answers with adapters are the same bits alone and in any company: beside other adapters and none, in chunks, after
preemption, with a prefix hit, with guesses, under a grammar."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.clock import ManualClock
from tailrace.config import EngineConfig
from tailrace.engine.build import build_engine
from tailrace.engine.lora.read import read_adapter
from tailrace.engine.parts import EngineParts
from tailrace.engine.step_draft import StepDraft
from tailrace.types import Adapter, GenerateRequest, Grammar, GrammarKind, SamplingParams
from tests.engine.support import Rig, prompt, request
from tests.peft import write_adapter
from tests.tiny import write_tiny_gguf

SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, seed=11, logprobs=1)
GREEDY = SamplingParams(temperature=0.0, logprobs=0)
Bits = list[tuple[list[int], list[float | None]]]
DIGITS = Grammar(GrammarKind.REGEX, "[0-9]{4,30}x")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_gguf(folder / "tiny.gguf")
    write_adapter(folder / "a", rank=16, seed=1)
    write_adapter(folder / "b", rank=3, seed=2, dtype="bf16", targets=("q_proj", "v_proj", "up_proj"))
    return folder


def engine(folder: Path, *, draft: Path | None = None, **settings: object) -> EngineParts:
    """On a clock that stands still: every guess is worth its row."""
    chosen = {"threads": 1, "chunk_tokens": 512, "speculate": "off"} | settings
    config = EngineConfig(kv="bf16", kv_memory=400 * 16384, **chosen)  # type: ignore[arg-type]
    return build_engine(folder / "tiny.gguf", config, ManualClock(), draft=draft, cache_dir=folder / "cache")


@pytest.fixture(scope="module")
def adapters(folder: Path) -> list[Adapter | None]:
    loaded = engine(folder).loaded
    assert loaded is not None
    names = ("a", "b")
    found = [read_adapter(folder / name, loaded.spec, loaded.model) for name in names]
    return [None, *(Adapter(name, bytes([i] * 8), w) for i, (name, w) in enumerate(zip(names, found, strict=True)))]


def wanted(adapters: list[Adapter | None], **fields: object) -> list[GenerateRequest]:
    """The same prompts with each adapter and with none, so that whatever is shared wrongly shows."""
    return [
        request(f"{length} {i}", prompt(length), 24, sampling=replace(SAMPLED, seed=i) if length % 2 else GREEDY,
                adapter=adapter, **fields)
        for length in (5, 64, 131, 200)
        for i, adapter in enumerate(adapters)
    ]  # fmt: skip


def bits(rig: Rig, requests: list[GenerateRequest]) -> Bits:
    return [(rig.tokens(one.id), rig.choice(one.id).logprobs) for one in requests]


@pytest.fixture(scope="module")
def alone(folder: Path, adapters: list[Adapter | None]) -> Bits:
    rig = Rig(engine(folder, prefix_cache=False))
    for one in wanted(adapters):
        rig.run(one)
    found = bits(rig, wanted(adapters))
    assert len({tuple(tokens) for tokens, _ in found}) == len(found), "every adapter says something else"
    return found


@pytest.mark.parametrize(("threads", "chunk"), [(1, 512), (2, 512), (2, 16)])
def test_batched_together(folder: Path, adapters: list[Adapter | None], alone: Bits, threads: int, chunk: int) -> None:
    rig = Rig(engine(folder, threads=threads, chunk_tokens=chunk)).run(*wanted(adapters))
    assert bits(rig, wanted(adapters)) == alone


def test_after_preemption(folder: Path, adapters: list[Adapter | None], alone: Bits) -> None:
    rig = Rig(engine(folder, chunk_tokens=100))
    rig.submit(*wanted(adapters))
    turn = 0
    while rig.scheduler.has_work:
        turn += 1
        rig.step()
        if turn % 4 == 0 and rig.scheduler.running:
            rig.scheduler._preempt(StepDraft(), rig.scheduler.running[turn // 4 % len(rig.scheduler.running)], "test")
            rig.scheduler.kv.clear_cache()
    assert rig.loop.stats.recomputed_tokens > 200
    assert bits(rig, wanted(adapters)) == alone


def test_a_prefix_is_found_under_its_own_adapter_only(
    folder: Path, adapters: list[Adapter | None], alone: Bits
) -> None:
    rig = Rig(engine(folder))
    for turn in range(2):
        for one in wanted(adapters):
            rig.run(replace(one, id=f"{turn} {one.id}"))
    for one, expected in zip(wanted(adapters), alone, strict=True):
        length, place = (int(part) for part in one.id.split())
        first, second = (rig.events[f"{turn} {one.id}"][0].cached_tokens for turn in range(2))
        longest_before = {5: 0, 64: 0, 131: 64, 200: 128}[length]  # the shorter prompts begin as the longer ones
        assert (first, second) == (longest_before, (length - 1) // 64 * 64), place
        assert (rig.tokens(f"1 {one.id}"), rig.choice(f"1 {one.id}").logprobs) == expected


def test_an_adapter_that_is_loaded_again_finds_nothing_of_the_first(
    folder: Path, adapters: list[Adapter | None]
) -> None:
    assert adapters[1] is not None
    again = replace(adapters[1], key=b"12345678")
    rig = Rig(engine(folder)).run(request("first", 200, adapter=adapters[1])).run(request("second", 200, adapter=again))
    assert rig.events["second"][0].cached_tokens == 0
    assert rig.tokens("first") == rig.tokens("second")


@pytest.mark.parametrize("draft", [False, True])
def test_guesses_change_nothing(folder: Path, adapters: list[Adapter | None], alone: Bits, draft: bool) -> None:
    """The draft model knows no adapter; what it says wrongly is refused."""
    path = write_tiny_gguf(folder / "draft.gguf") if draft else None
    rig = Rig(engine(folder, speculate="auto" if draft else "lookup", draft=path)).run(*wanted(adapters))
    assert bits(rig, wanted(adapters)) == alone
    if draft:
        assert rig.loop.stats.drafted_tokens > rig.loop.stats.accepted_tokens > 40


def test_a_grammar_holds_with_an_adapter(folder: Path, adapters: list[Adapter | None]) -> None:
    rig = Rig(engine(folder, speculate="lookup")).run(*wanted(adapters, grammar=DIGITS))
    apart = Rig(engine(folder, prefix_cache=False))
    for one in wanted(adapters, grammar=DIGITS):
        apart.run(one)
        assert set(rig.choice(one.id).text) <= set("0123456789x")
    assert bits(rig, wanted(adapters, grammar=DIGITS)) == bits(apart, wanted(adapters, grammar=DIGITS))
    assert len({rig.choice(one.id).text for one in wanted(adapters)}) > 4


def test_choices_and_scores_have_the_adapter(folder: Path, adapters: list[Adapter | None]) -> None:
    one = request("r", prompt(70), 20, sampling=SAMPLED, adapter=adapters[1], n=3, prompt_logprobs=0)
    plain = replace(one, id="plain", adapter=None)
    rig = Rig(engine(folder)).run(one, plain)
    apart = Rig(engine(folder)).run(one)
    for index in range(3):
        assert rig.tokens("r", index) == apart.tokens("r", index) != rig.tokens("plain", index)
    assert rig.events["r"][0].prompt_logprobs == apart.events["r"][0].prompt_logprobs
    assert rig.events["r"][0].prompt_logprobs != rig.events["plain"][0].prompt_logprobs


def test_keys_of_the_prefix_cache_never_meet() -> None:
    """Whatever salt a request brings."""
    one, other = Adapter("x", b"\0" * 7 + b"\1", None), Adapter("x", b"\0" * 7 + b"\2", None)
    salts = (b"", b"\1", b"\1" + one.key, b"\1" + bytes(8), b"\0a", one.key)
    keys = {request(salt=salt, adapter=adapter).cache_key for salt in salts for adapter in (None, one, other)}
    assert len(keys) == 3 * len(salts)
    assert request(salt=b"tenant").cache_key == b"tenant"
