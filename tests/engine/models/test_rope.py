"""Frequencies and tables against their definitions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailrace.engine.models.registry import describe
from tailrace.engine.models.rope import Rope, Yarn
from tailrace.engine.weights.gguf import GgufFile
from tests.architectures import write_tiny
from tests.tiny import write_tiny_gguf


def yarn_frequencies(theta: float, dim: int, factor: float, original: int, fast: float, slow: float) -> list[float]:
    """Section 3.2 of the paper, pair by pair: by r(d), the turns within the original context, blended by a ramp whose
    ends are rounded outwards to whole pairs, as the authors' code does."""
    low = math.floor(dim * math.log(original / (fast * 2 * math.pi)) / (2 * math.log(theta)))
    high = math.ceil(dim * math.log(original / (slow * 2 * math.pi)) / (2 * math.log(theta)))
    low, high = max(low, 0), min(high, dim - 1)
    found = []
    for pair in range(dim // 2):
        frequency = theta ** (-2 * pair / dim)
        ramp = min(max((pair - low) / (high - low), 0.0), 1.0)
        found.append((1 - ramp) * frequency + ramp * frequency / factor)
    return found


@pytest.mark.parametrize(
    ("theta", "dim", "factor", "original", "fast", "slow"),
    [(10000.0, 64, 16.0, 4096, 32.0, 1.0), (1e6, 128, 4.0, 32768, 32.0, 1.0), (500.0, 32, 2.5, 300, 8.0, 2.0)],
)
def test_yarn_is_the_papers(theta: float, dim: int, factor: float, original: int, fast: float, slow: float) -> None:
    rope = Rope(theta=theta, dim=dim, yarn=Yarn(factor, original, fast, slow, attention=1.25))
    cos, sin = rope.tables(3)
    frequency = np.array(yarn_frequencies(theta, dim, factor, original, fast, slow))
    np.testing.assert_allclose(cos[2], 1.25 * np.cos(2 * frequency), atol=1e-7)
    np.testing.assert_allclose(sin[2], 1.25 * np.sin(2 * frequency), atol=1e-7)


def test_yarn_keeps_the_fastest_pairs_and_divides_the_slowest() -> None:
    plain, yarn = Rope(theta=1e6, dim=128), Rope(theta=1e6, dim=128, yarn=Yarn(4.0, 32768))
    np.testing.assert_array_equal(yarn.tables(9)[0][:, :20], plain.tables(9)[0][:, :20])
    np.testing.assert_allclose(yarn.tables(9)[1][8, -5:], plain.tables(9)[1][2, -5:], rtol=1e-6)


def rope_of(folder: Path, **extra: Any) -> Rope:
    named = {f"llama.rope.scaling.{key}": value for key, value in extra.items()}
    return describe(GgufFile(write_tiny_gguf(folder / "tiny.gguf", extra=named))).ropes[0]


def test_yarn_in_metadata(tmp_path: Path) -> None:
    usual = rope_of(tmp_path, type="yarn", factor=4.0, original_context_length=512).yarn
    assert usual is not None
    assert (usual.factor, usual.original, usual.fast, usual.slow) == (4.0, 512, 32.0, 1.0)
    assert usual.attention == pytest.approx(0.1 * math.log(4) + 1)
    own = rope_of(tmp_path, type="yarn", factor=4.0, yarn_beta_fast=16.0, yarn_beta_slow=2.0, attn_factor=0.5).yarn
    assert own is not None
    assert (own.original, own.fast, own.slow) == (2048, 16.0, 2.0)  # the original context is the context
    assert own.attention == pytest.approx(0.5 * (0.1 * math.log(4) + 1))
    replaced = rope_of(tmp_path, type="yarn", factor=4.0, attention_factor=1.5).yarn
    assert replaced is not None and replaced.attention == 1.5


def test_yarn_reaches_the_executor(tmp_path: Path) -> None:
    """A model whose attention factor is f scores as one whose score scale is f * f larger."""
    from tailrace.engine.weights.load import load_model
    from tests.native.tiny import run_chunked

    stretch = {"rope.scaling.type": "yarn", "rope.scaling.factor": 1.0, "rope.scaling.attn_factor": 1.5}
    one = write_tiny("gemma3", tmp_path / "one.gguf", layers=1, wtype="f32", extra={
        **{f"gemma3.{key}": value for key, value in stretch.items()}, "gemma3.attention.sliding_window_pattern": 1,
        "gemma3.attention.scale": 0.1,
    })  # fmt: skip
    other = write_tiny("gemma3", tmp_path / "other.gguf", layers=1, wtype="f32", extra={
        "gemma3.attention.sliding_window_pattern": 1, "gemma3.attention.scale": 0.225,
    })  # fmt: skip
    ids = list(range(10, 100))
    found, expected = (run_chunked(load_model(path, weights="bf16", threads=1).model, ids, 90) for path in (one, other))
    np.testing.assert_allclose(found, expected, atol=0.03)
    plain = write_tiny("gemma3", tmp_path / "plain.gguf", layers=1, wtype="f32", extra={
        "gemma3.attention.sliding_window_pattern": 1, "gemma3.attention.scale": 0.1,
    })  # fmt: skip
    assert np.abs(run_chunked(load_model(plain, weights="bf16", threads=1).model, ids, 90) - expected).max() > 0.1
