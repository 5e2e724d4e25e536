"""Canonical weights: the numbers every packed form must reproduce."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.engine.weights import quantize as module
from tailrace.engine.weights.quantize import quantize_affine4, quantize_rows, round_bf16, widen_bf16
from tailrace.errors import ModelFileError


def test_rows_use_the_whole_range_and_round_half_to_even():
    w = np.array([[127, -127, 0.5, 1.5, -2.5, 3.4], [0, 0, 0, 0, 0, 0], [-254, 2, 3, 254, 0, 1]], np.float32)
    result = quantize_rows(w)
    assert result.w8.dtype == np.int8
    assert result.scale.dtype == np.float32
    assert result.w8.tolist() == [[127, -127, 0, 2, -2, 3], [0] * 6, [-127, 1, 2, 127, 0, 0]]
    assert result.scale.tolist() == [1, 0, 2]


def test_rows_are_within_half_a_step_of_the_weights():
    w = np.random.default_rng(0).standard_normal((300, 640)).astype(np.float32) * 0.03
    result = quantize_rows(w)
    error = np.abs(w - result.w8 * result.scale[:, None]) / result.scale[:, None]
    assert error.max() < 0.501
    assert error.mean() == pytest.approx(0.25, abs=0.01)


def test_rows_do_not_depend_on_the_chunk_they_are_in(monkeypatch):
    w = np.random.default_rng(1).standard_normal((37, 64)).astype(np.float32)
    whole = quantize_rows(w)
    monkeypatch.setattr(module, "CHUNK_VALUES", 5 * 64)
    parts = quantize_rows(w)
    assert np.array_equal(whole.w8, parts.w8)
    assert np.array_equal(whole.scale, parts.scale)


@pytest.mark.parametrize("size", [1e-45, 1e-38, 1e-31, 1e-29, 1e-10, 1e10, 3e38])
def test_rows_of_any_size_stay_in_range(size):
    w = np.array([[1, -1, 0.6, -0.2]], np.float32) * np.float32(size)
    result = quantize_rows(w)
    assert np.isfinite(result.scale).all()
    assert result.w8.tolist() == ([[0, 0, 0, 0]] if size < 1e-30 else [[127, -127, 76, -25]])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_is_refused_with_its_row(bad, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_VALUES", 3 * 64)
    w = np.ones((8, 64), np.float32)
    w[5, 7] = bad
    with pytest.raises(ModelFileError, match="row 5 "):
        quantize_rows(w)
    with pytest.raises(ModelFileError, match="row 5 "):
        quantize_affine4(np.zeros((8, 64), np.uint8), w[:, 6:8], w[:, :2])


def random_groups(rng, rows, groups):
    """Groups as a 4-bit file holds them, of very different sizes within a row; some rows and groups are zero."""
    d = rng.standard_normal((rows, groups)) * np.exp(rng.uniform(-6, 0, (rows, groups)))
    m = rng.standard_normal((rows, groups)) * 8 * np.abs(d)
    d[0], m[0] = 0, 0
    d[1, 0] = 0
    q = rng.integers(0, 16, (rows, groups * 32)).astype(np.uint8)
    return q, d.astype(np.float16).astype(np.float32), m.astype(np.float16).astype(np.float32)


@pytest.mark.parametrize("symmetric", [False, True])
def test_affine_weights_are_near_the_file_s_values(symmetric):
    q, d, m = random_groups(np.random.default_rng(2), 50, 18)
    if symmetric:
        m = -8 * d
    result = quantize_affine4(q, d, m)
    exact = (q.reshape(50, 18, 32) * d[..., None] + m[..., None]).reshape(50, -1)
    int8 = result.to_int8()
    steps = (int8.w8 * int8.scale[:, None] - exact)[1:] / int8.scale[1:, None]
    # half a step of rounding, and a, b rounded to 1/64: at most (15 / 2 + 1 / 2) / 64 of a step more
    assert np.abs(steps).max() <= 0.5 + 8 / 64 + 1e-3
    assert abs(steps.mean()) < 0.015  # ties in 1/64 go up: 1/128 of a step on average
    assert not int8.w8[0].any()
    assert int8.scale[0] == 0
    assert (result.q is q, result.a.dtype, result.b.dtype) == (True, np.int16, np.int16)


def test_affine_int8_is_the_shifted_sum():
    q, d, m = random_groups(np.random.default_rng(3), 7, 3)
    result = quantize_affine4(q, d, m)
    int8 = result.to_int8()
    for n, k in [(1, 0), (2, 31), (3, 32), (4, 95), (6, 64)]:
        a, b = int(result.a[n, k // 32]), int(result.b[n, k // 32])
        assert int(int8.w8[n, k]) == (a * int(q[n, k]) + b) >> 6
    assert np.array_equal(int8.scale, result.scale)


finite = st.floats(-65504, 65504, width=16)


@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=6))
@settings(max_examples=300, deadline=None)
def test_no_affine_group_can_leave_int8_or_overflow_16_bits(groups):
    d = np.array([[pair[0] for pair in groups]], np.float32)
    m = np.array([[pair[1] for pair in groups]], np.float32)
    result = quantize_affine4(np.zeros((1, 32 * len(groups)), np.uint8), d, m)
    product = result.a.astype(np.int64)[..., None] * np.arange(16)
    total = product + result.b[..., None]
    assert np.abs(product).max() <= 32767
    assert np.abs(total).max() <= 32767
    assert np.abs(total >> 6).max() <= 127


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_a_real_4_bit_matrix_keeps_its_values(kind):
    w = np.random.default_rng(4).standard_normal((64, 576)).astype(np.float32)
    qtype = GGMLQuantizationType[kind]
    raw = quants.quantize(w, qtype)
    header = 4 if kind == "Q4_1" else 2
    blocks = raw.reshape(64, 18, header + 16)
    halves = np.ascontiguousarray(blocks[..., :header]).view(np.float16).astype(np.float32)
    q = np.concatenate([blocks[..., header:] & 15, blocks[..., header:] >> 4], axis=-1).reshape(64, 576)
    d, m = halves[..., 0], halves[..., 1] if kind == "Q4_1" else -8 * halves[..., 0]
    int8 = quantize_affine4(q, d, m).to_int8()
    error = int8.w8 * int8.scale[:, None] - quants.dequantize(raw, qtype)
    assert np.sqrt(np.mean(error**2)) < 0.012 * np.sqrt(np.mean(w**2))


def test_bf16_rounds_half_to_even_and_keeps_what_fits():
    cases = {
        0x3F800000: 0x3F80,  # 1
        0x3F808000: 0x3F80,  # a tie goes to the even neighbour, here down
        0x3F818000: 0x3F82,  # and here up
        0x3F808001: 0x3F81,
        0xBF80FFFF: 0xBF81,
        0x7F7FFFFF: 0x7F80,  # too large: infinity
        0xFF800000: 0xFF80,
        0x00000000: 0x0000,
        0x80000000: 0x8000,
    }
    w = np.array(list(cases), np.uint32).view(np.float32)
    assert round_bf16(w).tolist() == list(cases.values())
    nans = np.array([0x7FC00000, 0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(widen_bf16(round_bf16(nans))).all()


def test_bf16_does_not_depend_on_the_chunk(monkeypatch):
    w = np.random.default_rng(6).standard_normal((13, 11)).astype(np.float32)
    whole = round_bf16(w)
    monkeypatch.setattr(module, "CHUNK_VALUES", 17)
    assert np.array_equal(round_bf16(w), whole)
    assert np.array_equal(round_bf16(w.T), whole.T)


def test_bf16_widened_is_within_half_a_unit_in_the_last_place():
    w = np.random.default_rng(5).standard_normal((4, 100)).astype(np.float32)
    back = widen_bf16(round_bf16(w))
    assert back.shape == w.shape
    assert (np.abs(back - w) / np.abs(w)).max() <= 2.0**-8
    assert np.array_equal(round_bf16(back), round_bf16(w))
