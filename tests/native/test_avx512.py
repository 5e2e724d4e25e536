"""The AVX-512 kernels, run on emulated operations: the source is the one compiled for the real instructions.

Where they can go wrong and others cannot: rows stored as bytes with an offset, rows of either form by their number, and
wide channels gathered out of a panel. Everything else is tested with all variants in test_kernels.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tailrace import _native
from tests.native.tiny import i32, random_nibbles, to_bf16

testing: Any = _native.testing  # type: ignore[attr-defined]
AVX512 = "avx512-emulated"
TEAM = _native.Team(1)
F = np.float32

pytestmark = pytest.mark.skipif(
    AVX512 not in _native.test_variants(), reason="the emulated variant is built for x86-64 with AVX2 only"
)


@pytest.mark.parametrize("fmt", ["int8", "nib4"])
@pytest.mark.parametrize("m", [1, 2, 3, 300])
def test_every_16_bit_value_survives(fmt: str, m: int) -> None:
    values = np.arange(-32512, 32513, dtype=F)
    rows = np.full((-(-len(values) // (63 * m)) * m, 64), 32512, F)  # the first of each row fixes the step at 1
    rows[:, 1:].flat[: len(values)] = values
    for batch in rows.reshape(-1, m, 64):
        q, step = testing.quantize(AVX512, fmt, batch, i32(range(64)))
        assert (step == 1).all()
        np.testing.assert_array_equal(q, batch.astype(np.int32))


def layer(fmt: str, n: int, k: int, count: int) -> tuple[Any, ...]:
    """Packed for this variant, then for AVX2; the integers it means; wide channels."""
    rng = np.random.default_rng(n + k + count)
    wide = np.sort(rng.choice(k, count, replace=False)).astype(np.int32)
    if fmt == "nib4":
        q, a, b, w8 = random_nibbles(rng, n, k)
        return *(_native.pack_nib4(v, q, a, b, wide) for v in (AVX512, "avx2")), w8, wide
    w8 = rng.integers(-128, 128, (n, k), dtype=np.int8)
    return *(_native.pack_int8(v, w8, wide) for v in (AVX512, "avx2")), w8, wide


def outliers(m: int, k: int, wide: Any) -> Any:
    x = np.random.default_rng(m).normal(size=(m, k)).astype(F)
    x[:, wide] *= F(90)
    return x


@pytest.mark.parametrize("fmt", ["int8", "nib4"])
@pytest.mark.parametrize(("n", "k", "count"), [(32, 32, 0), (70, 96, 64), (40, 64, 64), (64, 1120, 192)])
def test_any_number_of_rows_gives_the_bits_of_avx2(fmt: str, n: int, k: int, count: int) -> None:
    """Every height of the register tile, one panel a task and two, both forms of rows, more than one block of rows."""
    packed, plain, _, wide = layer(fmt, n, k, count)
    scale, x = np.random.default_rng(1).uniform(1e-3, 1e-2, n).astype(F), outliers(300, k, wide)
    whole = testing.gemm("avx2", fmt, plain, n, scale, wide, x, "", TEAM)[0]
    for m in (*range(1, 18), 300):
        for threads in (1, 9):
            y = testing.gemm(AVX512, fmt, packed, n, scale, wide, x[:m], "", _native.Team(threads))[0]
            np.testing.assert_array_equal(y, whole[:m])


@pytest.mark.parametrize("fmt", ["int8", "nib4", "bf16"])
@pytest.mark.parametrize("gate", ["", "silu", "gelu"])
def test_floats_have_the_bits_of_avx2(fmt: str, gate: str) -> None:
    if fmt == "bf16":
        bits = to_bf16(np.random.default_rng(2).normal(size=(64, 2080)))
        packed, plain, scale, wide = *(_native.pack_bf16(v, bits) for v in (AVX512, "avx2")), None, i32([])
    else:
        packed, plain, _, wide = layer(fmt, 64, 2080, 64)
        scale = np.full(64, 1e-4, F)
    for m in (1, 5, 33):
        x = outliers(m, 2080, wide)
        y = testing.gemm(AVX512, fmt, packed, 64, scale, wide, x, gate, TEAM)[0]
        np.testing.assert_array_equal(y, testing.gemm("avx2", fmt, plain, 64, scale, wide, x, gate, TEAM)[0])


def test_attention_has_the_bits_of_avx2() -> None:
    rng = np.random.default_rng(3)
    q = rng.normal(size=(13, 9, 64)).astype(F)
    keys, values = to_bf16(rng.normal(size=(2, 313, 3, 64)))
    table = i32(rng.permutation(5))
    ours, theirs = (testing.attention(v, q, keys, values, table, 300, 6)[0] for v in (AVX512, "avx2"))
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("sign", [1, -1])
def test_sums_at_the_edge_of_32_bits_are_exact(sign: int) -> None:
    """What is added on the way exceeds 32 bits by far; the result does not."""
    k, wide = 4096, i32(range(0, 4096, 9)[:448])
    x = np.full((9, k), 127.0 * sign, F)
    x[:, wide] = 32512.0 * sign
    w8 = np.full((32, k), -127, np.int8)
    w8[:, -64:] = 127
    total = int((x[0].astype(np.int64) * w8[0]).sum())
    assert 2**30 < abs(total) < 2**31
    y = testing.gemm(AVX512, "int8", _native.pack_int8(AVX512, w8, wide), 32, np.ones(32, F), wide, x, "", TEAM)[0]
    np.testing.assert_array_equal(y, np.full((9, 32), F(total)))


def test_the_real_variant_is_offered_only_where_it_can_run() -> None:
    features = _native.cpu_features()
    needed = ("avx2", "fma", "f16c", "bmi2", "avx512", "avx512_vnni")
    assert ("avx512" in _native.variants()) == all(features[name] for name in needed)
    assert AVX512 not in _native.variants()
