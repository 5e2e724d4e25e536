"""Dequantized values are bit-equal to the `gguf` package's, on random blocks and on a real file where there is one."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.config import EngineConfig, store_root
from tailrace.engine.store.store import Store
from tailrace.engine.weights.dequant import AFFINE4, DEQUANTIZABLE, affine4, dequantize
from tailrace.engine.weights.gguf import GgufFile
from tests.tiny import write_tiny_gguf

BLOCK_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "Q4_0": 18, "Q4_1": 20, "Q8_0": 34}


def bits(values: np.ndarray) -> np.ndarray:
    """Comparable bits: a NaN's sign and payload are the processor's affair, that it is one is ours."""
    return np.where(np.isnan(values), np.uint32(0x7FC00000), values.view(np.uint32))


def test_all_types_are_tested() -> None:
    assert set(BLOCK_BYTES) == set(DEQUANTIZABLE)


@pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning")
@pytest.mark.parametrize("kind", DEQUANTIZABLE)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 5), blocks=st.integers(1, 7))
def test_random_blocks(kind: str, seed: int, rows: int, blocks: int) -> None:
    """Random bytes: every scale is met, among them subnormal, infinite and NaN ones."""
    raw = np.random.default_rng(seed).integers(0, 256, (rows, blocks * BLOCK_BYTES[kind]), np.uint8)
    expected = gguf.quants.dequantize(raw, GGMLQuantizationType[kind]).reshape(rows, -1)
    found = dequantize(raw, kind)
    assert found.dtype == np.float32 and found.shape == expected.shape
    np.testing.assert_array_equal(bits(found), bits(expected))


@pytest.mark.parametrize("kind", AFFINE4)
def test_affine_form_gives_the_same_numbers(kind: str) -> None:
    rng = np.random.default_rng(7)
    values = rng.standard_normal((12, 256)).astype(np.float32) * rng.uniform(0.01, 3, (12, 1)).astype(np.float32)
    raw = gguf.quants.quantize(values, GGMLQuantizationType[kind])
    q, d, m = affine4(raw, kind)
    assert (q.dtype, q.shape, d.shape, m.shape) == (np.uint8, (12, 256), (12, 8), (12, 8))
    assert q.max() == 15 and q.min() == 0
    rebuilt = (d[..., None] * q.reshape(12, 8, 32) + m[..., None]).reshape(12, 256)
    np.testing.assert_array_equal(rebuilt, dequantize(raw, kind))


def test_nibble_order_by_hand() -> None:
    """Byte i of a block holds value i in its low half and value 16 + i in its high half; here d = 1, m = 0."""
    raw = np.zeros((1, 20), np.uint8)
    raw[0, :2] = np.array([1.0], np.float16).view(np.uint8)
    raw[0, 4], raw[0, 19] = 0x52, 0xF1
    values = dequantize(raw, "Q4_1")[0]
    assert {int(i): float(values[i]) for i in np.flatnonzero(values)} == {0: 2.0, 16: 5.0, 15: 1.0, 31: 15.0}


def check_file(path: Path) -> int:
    file = GgufFile(path)
    for name, info in file.tensors.items():
        raw = file.raw(name)[:64]
        expected = gguf.quants.dequantize(raw, GGMLQuantizationType[info.type.name])
        np.testing.assert_array_equal(dequantize(raw, info.type.name), expected, err_msg=name)
    return len(file.tensors)


def test_a_written_file(tmp_path: Path) -> None:
    assert check_file(write_tiny_gguf(tmp_path / "tiny.gguf", wtype="q4_0", embedding_type="q4_1")) == 20


def test_the_pulled_model() -> None:
    """The real file's tensors, where `tailrace pull` has put one."""
    model = Store(store_root(EngineConfig())).models()[0]
    if not model.pulled:
        pytest.skip(f"{model.name} is not pulled")
    assert check_file(model.path) == 272
