"""Dequantized values are bit-equal to the `gguf` package's, on random blocks and on the default model."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.engine.weights import dequant
from tailrace.engine.weights.dequant import AFFINE4, DEQUANTIZABLE, affine4, dequantize
from tailrace.engine.weights.gguf import GgufFile
from tests.tiny import write_tiny_gguf

BLOCK_BYTES = {kind: gguf.GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1] for kind in DEQUANTIZABLE}
# Where each format keeps its float16 scales, so that the special ones are met in every position.
HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "IQ4_NL": (0,), "Q2_K": (80, 82),
    "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_XS": (0,),
}  # fmt: skip
# Zero, minus zero, subnormal, smallest normal, one, largest, infinities, NaN.
SPECIAL_HALVES = (0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3C00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00)


def bits(values: np.ndarray) -> np.ndarray:
    """Comparable bits: a NaN's sign and payload are the processor's affair, that it is one is ours."""
    return np.where(np.isnan(values), np.uint32(0x7FC00000), values.view(np.uint32))


def check(raw: np.ndarray, kind: str) -> None:
    expected = gguf.quants.dequantize(raw, GGMLQuantizationType[kind]).reshape(len(raw), -1)
    found = dequantize(raw, kind)
    assert found.dtype == np.float32 and found.shape == expected.shape
    np.testing.assert_array_equal(bits(found), bits(expected))


IGNORED = pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning")


@IGNORED
@pytest.mark.parametrize("kind", DEQUANTIZABLE)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 5), blocks=st.integers(1, 7))
def test_random_blocks(kind: str, seed: int, rows: int, blocks: int) -> None:
    """Random bytes: every scale is met, among them subnormal, infinite and NaN ones."""
    check(np.random.default_rng(seed).integers(0, 256, (rows, blocks * BLOCK_BYTES[kind]), np.uint8), kind)


@IGNORED
@pytest.mark.parametrize("kind", DEQUANTIZABLE)
def test_every_byte_value_at_every_place(kind: str) -> None:
    """Row v holds the byte v everywhere; then v at one place after another of a block of zeros and of ones."""
    size = BLOCK_BYTES[kind]
    check(np.repeat(np.arange(256, dtype=np.uint8)[:, None], size, axis=1), kind)
    for background in (0, 255):
        raw = np.full((size * 8, size), background, np.uint8)
        for bit in range(8):
            raw[np.arange(size) * 8 + bit, np.arange(size)] ^= np.uint8(1 << bit)
        for start in HALVES.get(kind, ()):  # a scale of one, or the numbers would not show
            raw[:, start : start + 2] = np.array([0x3C00], np.uint16).view(np.uint8)
        check(raw, kind)


@IGNORED
@pytest.mark.parametrize(("kind", "start"), [(kind, start) for kind, starts in HALVES.items() for start in starts])
def test_special_scales(kind: str, start: int) -> None:
    rng = np.random.default_rng(start)
    raw = rng.integers(0, 256, (len(SPECIAL_HALVES), 3 * BLOCK_BYTES[kind]), np.uint8)
    raw[:, start : start + 2] = np.array(SPECIAL_HALVES, np.uint16).view(np.uint8).reshape(-1, 2)
    check(raw, kind)


def test_every_format_with_scales_is_in_the_table() -> None:
    assert set(HALVES) == set(DEQUANTIZABLE) - {"F32", "F16", "BF16"}


@pytest.mark.parametrize("kind", HALVES)
def test_tall_matrices_are_worked_on_in_parts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = np.random.default_rng(1).integers(0, 120, (11, 2 * BLOCK_BYTES[kind]), np.uint8)
    whole = dequantize(raw, kind)
    monkeypatch.setattr(dequant, "CHUNK_BYTES", 4 * raw.shape[1])
    np.testing.assert_array_equal(bits(dequantize(raw, kind)), bits(whole))


@pytest.mark.parametrize("kind", AFFINE4)
def test_affine_form_gives_the_same_numbers(kind: str) -> None:
    rng = np.random.default_rng(7)
    raw = rng.integers(
        0, 256, (12, 256 // gguf.GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0] * BLOCK_BYTES[kind]), np.uint8
    )
    blocks = raw.reshape(-1, BLOCK_BYTES[kind])
    for start in HALVES[kind]:
        blocks[:, start : start + 2] = rng.standard_normal((len(blocks), 1)).astype(np.float16).view(np.uint8)
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


def test_every_tensor_of_the_default_model(smollm2_path: Path) -> None:
    assert check_file(smollm2_path) == 272
