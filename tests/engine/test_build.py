"""Wiring: what is found out at start, and what the next start knows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailrace.clock import SystemClock
from tailrace.config import EngineConfig
from tailrace.engine import build
from tailrace.engine.build import build_engine
from tailrace.engine.grammar.drafter import GrammarDrafter
from tailrace.engine.parts import EngineParts
from tailrace.engine.spec.both import ModelDrafter
from tailrace.engine.spec.lookup import LookupDrafter
from tailrace.engine.step import Work
from tailrace.errors import ConfigError
from tests.engine.test_native_exactness import BLOCK
from tests.tiny import tiny_vocab_size, write_tiny_gguf


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_gguf(tmp_path / "tiny.gguf")


def built(model: Path, said: list[str] | None = None, **settings: object) -> EngineParts:
    config = EngineConfig(threads=1, isa="portable", **({"kv_memory": 100 * BLOCK, "kv": "bf16"} | settings))  # type: ignore[arg-type]
    say = [].append if said is None else said.append
    return build_engine(model, config, SystemClock(), cache_dir=model.parent / "cache", say=say)


def test_limits_are_those_of_model_and_settings(model: Path) -> None:
    limits = built(model, max_sequences=3, max_context=500).scheduler.limits
    assert (limits.max_sequences, limits.max_context, limits.vocab_size) == (3, 500, tiny_vocab_size())


def test_a_small_kv_cache_bounds_the_context_and_says_so(model: Path) -> None:
    said: list[str] = []
    assert built(model, said, kv_memory=4 * BLOCK).scheduler.limits.max_context == 256
    assert said[0].endswith("256 tokens in 4 blocks (as asked)")
    assert "context bounded to 256 tokens" in said[1]


def test_kv_types(model: Path) -> None:
    """As asked; unasked int8, but bf16 beside bf16 weights. Memory for 100 blocks of bf16 holds 177 of int8."""
    memory = 100 * BLOCK
    for asked, weights, stored, blocks in (
        ("auto", "auto", "int8", 177), ("int8", "bf16", "int8", 177), ("auto", "bf16", "bf16", 100),
        ("bf16", "auto", "bf16", 100),
    ):  # fmt: skip
        said: list[str] = []
        capacity = built(model, said, kv=asked, weights=weights, kv_memory=memory).capacity
        assert capacity is not None
        assert (capacity.kv, capacity.blocks) == (stored, blocks)
        assert said[0].startswith(f"{stored} KV cache ")
    names = {file.name.split("-")[3] for file in (model.parent / "cache" / "costs").glob("*.json")}
    assert names == {"kv_int8", "kv_bf16"}


def test_a_fixed_chunk_is_kept(model: Path) -> None:
    assert built(model, chunk_tokens=48).scheduler.budget.chunk_tokens(9, 9999) == 48


def test_costs_are_measured_once_and_what_was_learned_is_kept(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = built(model)
    assert first.keep_costs is not None
    first.keep_costs()
    monkeypatch.setattr(build, "calibrate", None)
    assert built(model).cost.coefficients.tolist() == first.cost.coefficients.tolist()


def test_what_is_learned_changes_no_charge(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = built(model)
    standard = first.cost.standard
    assert list(standard) == first.cost.coefficients.tolist()
    for _ in range(100):
        first.cost.observe(Work(decode=8, kv_tokens=800), 9.0)
    learned = first.cost.coefficients.tolist()
    assert first.cost.standard == standard
    assert list(standard) != learned
    assert first.keep_costs is not None
    first.keep_costs()
    monkeypatch.setattr(build, "calibrate", None)
    again = built(model).cost
    assert again.standard == standard
    assert again.coefficients.tolist() == learned


@pytest.mark.parametrize(
    "rubbish",
    [
        "",
        "[1, 2, 3, 4, 5]",
        json.dumps({"learned": [1, 0, 0, 0, 0], "standard": [-1, 0, 0, 0, 0]}),
        '{"learned": [NaN, 0, 0, 0, 0], "standard": [1, 0, 0, 0, 0]}',
        json.dumps({"learned": [1, 0, 0, 0, 0]}),
    ],
)
def test_a_broken_cost_file_is_measured_anew(model: Path, rubbish: str) -> None:
    first = built(model)
    assert first.keep_costs is not None
    first.keep_costs()
    (file,) = (model.parent / "cache" / "costs").glob("*.json")
    file.write_text(rubbish)
    assert (built(model).cost.coefficients >= 0).all()


def with_draft(model: Path, draft: Path, **settings: object) -> EngineParts:
    config = EngineConfig(threads=1, isa="portable", **({"kv_memory": 150 * BLOCK, "kv": "bf16"} | settings))  # type: ignore[arg-type]
    return build_engine(model, config, SystemClock(), draft=draft)


def test_a_draft_models_blocks_come_out_of_the_same_memory(model: Path) -> None:
    """Half as many layers take half as much, so two thirds of the blocks are left."""
    parts = with_draft(model, write_tiny_gguf(model.parent / "draft.gguf", layers=1))
    around = parts.scheduler.drafter
    assert isinstance(around, GrammarDrafter)
    drafter = around.inner
    assert isinstance(drafter, ModelDrafter)
    assert drafter._model is not None
    assert parts.scheduler.kv.pool.total == drafter._model.kv.pool.total == 100


def test_a_draft_model_of_another_vocabulary_is_refused(model: Path) -> None:
    draft = write_tiny_gguf(model.parent / "draft.gguf", vocab=tiny_vocab_size() + 20)
    with pytest.raises(ConfigError, match="of the same vocabulary") as caught:
        with_draft(model, draft)
    assert caught.value.param == "draft_model"


def test_a_draft_model_with_speculation_off_is_a_contradiction(model: Path) -> None:
    with pytest.raises(ConfigError, match="needs auto"):
        with_draft(model, model, speculate="off")


@pytest.mark.parametrize(
    ("speculate", "drafter"), [("off", type(None)), ("lookup", LookupDrafter), ("auto", LookupDrafter)]
)
def test_who_guesses(model: Path, speculate: str, drafter: type) -> None:
    around = built(model, speculate=speculate).scheduler.drafter
    assert isinstance(around, GrammarDrafter)
    assert type(around.inner) is drafter


def test_a_target_for_the_time_between_tokens_bounds_the_chunk(model: Path) -> None:
    unasked, asked = built(model).cost, built(model, tpot_target=0.02).cost
    assert (unasked.settings.decode_target, unasked.settings.least_chunk) == (0.2, 128)
    assert (asked.settings.decode_target, asked.settings.least_chunk) == (0.02, 16)
    asked._plain = [0.005, 0.0005, 0.001, 0.0, 0.0]
    chunk = asked.chunk_tokens(4, 1000)
    assert chunk < 32
    assert asked.predict(Work(chunk, 4, 1000)) <= 0.02
