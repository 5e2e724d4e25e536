"""The native encoder against NumPy: its two row kernels, and whole texts of a tiny model on every variant."""

from __future__ import annotations

from math import erf
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tailrace import _native
from tailrace.engine.weights.load import LoadedModel, load_model
from tests.reference.bert import hidden_states
from tests.tiny_bert import tiny_bert_config, tiny_bert_weights, write_tiny_bert

F32 = npt.NDArray[np.float32]
testing: Any = _native.testing  # type: ignore[attr-defined]
VARIANTS = _native.test_variants()
LENGTHS = (1, 2, 17, 64, 65, 256, 300)  # around a block of keys, and around a segment


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("bert") / "tiny-bert")


def texts() -> list[npt.NDArray[np.int32]]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, tiny_bert_config()["vocab_size"], n).astype(np.int32) for n in LENGTHS]


def states(loaded: LoadedModel, batch: list[npt.NDArray[np.int32]], kv: str = "bf16") -> list[F32]:
    """Hidden states of each text of a batch, computed in one step."""
    lengths = [len(ids) for ids in batch]
    starts = np.cumsum([0, *lengths]).astype(np.int32)
    width = 5
    cache = _native.KvCache(loaded.model, width * len(batch), kv)  # type: ignore[arg-type]
    tables = np.arange(width * len(batch), dtype=np.int32)[::-1].reshape(len(batch), width).copy()
    rows = np.arange(starts[-1], dtype=np.int32)
    loaded.model.forward(cache, np.concatenate(batch), starts, np.zeros(len(batch), np.int32), tables, rows, len(rows))
    assert loaded.model.logits().shape[0] == 0
    return np.split(loaded.model.hidden(), starts[1:-1])


@pytest.mark.parametrize("variant", VARIANTS)
def test_texts_are_as_the_reference_has_them(folder: Path, variant: str) -> None:
    config = tiny_bert_config()
    weights = tiny_bert_weights(config)
    loaded = load_model(folder, isa=variant, threads=2)
    for ids, found in zip(texts(), states(loaded, texts()), strict=True):
        expected = hidden_states(weights, config, ids)
        cosine = (found * expected).sum(axis=1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
        assert cosine.min() > 0.9998
        assert np.abs(found - expected).max() < 0.08


@pytest.mark.parametrize("variant", VARIANTS)
def test_company_and_threads_change_no_bit(folder: Path, variant: str) -> None:
    together = states(load_model(folder, isa=variant, threads=3), texts())
    alone = load_model(folder, isa=variant, threads=1)
    for ids, found in zip(texts(), together, strict=True):
        assert np.array_equal(states(alone, [ids])[0], found)


def test_int8_keys_are_near(folder: Path) -> None:
    config, ids = tiny_bert_config(), texts()[-1]
    found = states(load_model(folder, threads=1), [ids], "int8")[0]
    expected = hidden_states(tiny_bert_weights(config), config, ids)
    cosine = (found * expected).sum(axis=1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    assert cosine.min() > 0.999


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_row_of_layer_norm(variant: str) -> None:
    rng = np.random.default_rng(5)
    x, delta = (rng.standard_normal((3, 128)).astype(np.float32) * 4 + 2 for _ in range(2))
    delta_bias, weight, bias = (rng.standard_normal(128).astype(np.float32) for _ in range(3))
    found = testing.layer_norm(variant, x, delta, delta_bias, weight, bias, 1e-5)
    total = x.astype(np.float64) + delta + delta_bias
    centred = total - total.mean(axis=1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5) * weight + bias
    assert np.abs(found - expected).max() < 2e-5


@pytest.mark.parametrize("variant", VARIANTS)
def test_gelu_by_the_error_function(variant: str) -> None:
    x = np.concatenate([np.linspace(-12, 12, 2040), [0.0, -0.0, 1e-8, -1e-8, 60.0, -60.0, 1e4, -1e4]])
    x = x.astype(np.float32)[None]
    bias = np.full(x.shape[1], 0.25, np.float32)
    bits = testing.gelu(variant, x, bias, np.empty(0, np.int32))
    found = bits.view(np.float32)
    expected = [(v + 0.25) * 0.5 * (1 + erf((v + 0.25) / 2**0.5)) for v in x[0].astype(np.float64)]
    assert np.abs(found[0] - expected).max() < 1e4 * 2**-8  # rounded to bf16
    near = np.abs(x[0]) < 12
    assert np.abs(found[0] - expected)[near].max() < 12.25 * 2**-8
    small = np.abs(x[0]) < 1
    assert np.abs(found[0] - expected)[small].max() < 2**-8


def test_bad_calls_are_refused(folder: Path) -> None:
    loaded = load_model(folder, threads=1)
    cache = _native.KvCache(loaded.model, 5)
    one, table = np.array([3], np.int32), np.arange(5, dtype=np.int32)[None]
    bounds, zero = np.array([0, 1], np.int32), np.zeros(1, np.int32)
    with pytest.raises(ValueError, match="whole sequences"):
        loaded.model.forward(cache, one, bounds, np.array([4], np.int32), table, zero, 1)
    with pytest.raises(ValueError, match="hidden_only"):
        loaded.model.forward(cache, one, bounds, zero, table, zero, 2)
    with pytest.raises(ValueError, match="takes no bias"):
        loaded.model.set_bias("gate.0", np.zeros(64, np.float32))
    fresh = _native.Model(_native.variants()[0], loaded.native_spec, loaded.team)
    with pytest.raises(ValueError, match=r"embedding, positions, embed, qkv\.0"):
        fresh.finish()
