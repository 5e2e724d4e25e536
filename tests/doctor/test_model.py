"""What is said about a model file, against what loading it really takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tailrace import _native
from tailrace.clock import SystemClock
from tailrace.config import EngineConfig
from tailrace.doctor.finding import Finding, Level
from tailrace.doctor.model import model_findings, model_needs
from tailrace.doctor.speed import Speed, expected, known_speed, measured_speed
from tailrace.engine.cost import CostModel
from tailrace.engine.cost_file import KeptCosts, cost_file, keep_costs
from tailrace.engine.models.registry import describe
from tailrace.engine.nodes import Rank
from tailrace.engine.store.digest import sha256_file
from tailrace.engine.weights.load import load_model
from tailrace.engine.weights.open import open_checkpoint
from tailrace.engine.weights.source import WeightSource
from tailrace.errors import ConfigError
from tailrace.types import StepCosts
from tests.doctor.support import by_check, machine
from tests.tiny import write_tiny_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wide enough that padding is no large part of it."""
    return write_tiny_gguf(tmp_path_factory.mktemp("doctor") / "tiny.gguf", hidden=128, ffn=256, vocab=512)


def settings(tiny: Path, **fields: object) -> EngineConfig:
    return EngineConfig(model=str(tiny), store=str(tiny.parent / "store"), **fields)  # type: ignore[arg-type]


def look(tmp_path: Path, config: EngineConfig, **files: str) -> dict[str, Finding]:
    return by_check(model_findings(machine(tmp_path, files), config, None))


@pytest.mark.parametrize("weights", ["auto", "int8", "bf16"])
@pytest.mark.parametrize("variant", _native.variants())
def test_needs_are_what_loading_takes(tiny: Path, variant: str, weights: str) -> None:
    checkpoint = open_checkpoint(tiny)
    needs = model_needs(WeightSource(checkpoint, describe(checkpoint)))
    loaded = load_model(tiny, weights=weights, isa=variant, threads=1)
    assert needs.weights[loaded.weights] == pytest.approx(sum(loaded.bytes_by_format.values()), rel=0.1)
    assert list(needs.kv) == ["int8", "bf16"]
    for kv, count in needs.kv.items():
        assert count == _native.KvCache.bytes_per_block(loaded.native_spec, kv) / _native.BLOCK_TOKENS


def test_a_model_that_fits(tiny: Path, tmp_path: Path) -> None:
    found = look(tmp_path, settings(tiny))
    assert {finding.level for finding in found.values()} == {Level.OK}
    assert found["model"].text.startswith("Tiny Test: llama, 2 layers, 0.4 M weights, context 2,048; ")
    assert found["model"].facts["bytes_by_type"] == {
        info.type.name: sum(t.nbytes for t in open_checkpoint(tiny).tensors.values() if t.type == info.type)
        for info in open_checkpoint(tiny).tensors.values()
    }
    assert found["text"].text == "512 tokens, with a chat template"
    assert found["needs"].facts["chosen"] == "nib4"
    assert found["fits"].text.endswith("64.0 full contexts")
    near = look(tmp_path, settings(tiny, weights="bf16"))
    assert [near["needs"].facts[key] for key in ("chosen", "kv_chosen", "kv_bytes_per_token")] == ["bf16", "bf16", 512]
    small = look(tmp_path, settings(tiny, weights="bf16", kv="int8"))
    assert "KV cache a token int8 272 B (chosen), bf16 512 B" in small["needs"].text
    assert small["fits"].text.startswith("int8 KV cache ")
    assert small["fits"].facts["kv_bytes"] == near["fits"].facts["kv_bytes"] * 272 / 512  # type: ignore[operator]


def test_a_model_that_does_not_fit(tiny: Path, tmp_path: Path) -> None:
    none = {"proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 100 kB\n"}
    found = by_check(model_findings(machine(tmp_path, none), settings(tiny), None))["fits"]
    assert (found.level, found.facts["available"]) == (Level.FAIL, 102400)
    little = {"proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 1000 kB\n"}
    found = by_check(model_findings(machine(tmp_path, little), settings(tiny), None))["fits"]
    assert found.level is Level.WARN
    assert "less than one context of 2,048" in found.text
    asked = settings(tiny, kv_memory=100 << 30)
    found = look(tmp_path, asked)["fits"]
    assert found.level is Level.FAIL
    assert "set kv_memory to" in found.advice


def test_files_that_cannot_be_used_say_why(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF\x03\x00\x00\x00 and no more")
    found = look(tmp_path, settings(tmp_path / "bad.gguf"))
    assert list(found) == ["model"]
    assert found["model"].level is Level.FAIL
    assert "bad.gguf" in found["model"].text
    absent = look(tmp_path, settings(tmp_path / "absent.gguf"))["model"]
    assert (absent.level, "no model file" in absent.text) == (Level.FAIL, True)
    plain = write_tiny_gguf(tmp_path / "plain.gguf", template=None)
    assert look(tmp_path, settings(plain))["text"].level is Level.WARN


def test_a_named_model_that_is_not_here_yet_is_a_hint(tmp_path: Path) -> None:
    name = EngineConfig().model
    found = by_check(model_findings(machine(tmp_path), EngineConfig(store=str(tmp_path)), None))["model"]
    assert (found.level, found.advice) == (Level.WARN, f"tailrace pull {name}")


def test_speed_from_costs(tmp_path: Path) -> None:
    cost = CostModel(coefficients=np.array([0.001, 0.0001, 0.002, 1e-6, 0.0]))
    rates = expected(cost)
    assert rates["decode_1"] == pytest.approx(1 / (0.001 + 0.002 + 512e-6))
    assert rates["decode_8"] == pytest.approx(8 / (0.001 + 0.016 + 8 * 512e-6))
    assert rates["prefill"] == pytest.approx(512 / (0.001 + 0.0512))
    said = Speed(lambda path: cost.coefficients, "measured now").finding(tmp_path)
    assert (
        said.text == "about 285 tok/s in one stream, 379 in eight together, 9,808 prompt tokens a second (measured now)"
    )


def test_speed_known_from_an_earlier_start(tiny: Path, tmp_path: Path) -> None:
    config = EngineConfig(model=str(tiny), store=str(tmp_path))
    three = [Rank(2), Rank(1)]
    unknown = known_speed(config, lambda: three).finding(tiny)
    assert (unknown.text, "--measure" in unknown.advice) == ("not known yet", True)
    variant = _native.variants()[0]
    weights = _native.preferred_format(variant, "affine4")
    costs = np.array([0.001, 0.0001, 0.002, 1e-6, 0.0])
    file = cost_file(tmp_path, sha256_file(tiny), weights=weights, kv="int8", variant=variant, ranks=[2, 1])
    keep_costs(file, KeptCosts(costs, StepCosts()))
    assert known_speed(config, lambda: three).finding(tiny).text.endswith("(from an earlier start)")
    assert known_speed(config, lambda: [Rank(3)]).finding(tiny).text == "not known yet"
    assert known_speed(replace(config, kv="bf16"), lambda: three).finding(tiny).text == "not known yet"


def test_speed_that_cannot_be_measured_says_why(tmp_path: Path) -> None:
    def refuse(path: Path) -> None:
        raise ConfigError("max_context 9 is beyond the model's 8 tokens")

    found = Speed(refuse, "measured now").finding(tmp_path)
    assert (found.level, found.text) == (Level.FAIL, "max_context 9 is beyond the model's 8 tokens")


def test_speed_measured_now(tiny: Path) -> None:
    speed = measured_speed(settings(tiny, threads=1), SystemClock(), lambda stage, part: None)
    found = speed.finding(tiny)
    assert found.facts["source"] == "measured now"
    assert all(found.facts[name] > 0 for name in ("decode_1", "decode_8", "prefill"))  # type: ignore[operator]
