"""Every kernel of every variant against NumPy: integers and the float epilogue exactly, float sums closely."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tailrace import _native
from tests.native.tiny import from_bf16, i32, random_nibbles, to_bf16

testing: Any = _native.testing  # type: ignore[attr-defined]
VARIANTS = _native.test_variants()
F = np.float32


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def wide_channels(rng: np.random.Generator, k: int, count: int) -> Any:
    return np.sort(rng.choice(k, count, replace=False)).astype(np.int32)


def quantized(x: Any, wide: Any) -> tuple[Any, Any]:
    """The canonical quantization in float32."""
    mask = np.zeros(x.shape[1], bool)
    mask[wide] = True
    magnitude = np.abs(x)
    narrow = np.where(mask, F(0), magnitude).max(1) / F(127)
    large = np.where(mask, magnitude, F(0)).max(1) / F(32512)
    step = np.maximum(narrow, large).astype(F)
    inverse = np.divide(F(1), step, out=np.zeros_like(step), where=step > 0)
    return np.rint(x * inverse[:, None]).astype(np.int32), step


def spread_rows(rng: np.random.Generator, m: int, k: int, wide: Any) -> Any:
    """Rows of very different size, outliers in the wide channels, one all-zero row."""
    x = rng.normal(size=(m, k)).astype(F) * (10.0 ** rng.uniform(-3, 3, (m, 1))).astype(F)
    x[:, wide] *= F(50)
    x[0, :] = 0 if m > 1 else x[0]
    return x


@pytest.mark.parametrize(("k", "count"), [(32, 0), (64, 64), (96, 64), (576, 64), (1536, 128)])
def test_quantized_rows_are_the_canonical_integers(variant: str, k: int, count: int) -> None:
    rng = np.random.default_rng(k)
    wide = wide_channels(rng, k, count)
    x = spread_rows(rng, 7, k, wide)
    q, step = testing.quantize(variant, "int8", x, wide)
    expected, steps = quantized(x, wide)
    np.testing.assert_array_equal(q, expected)
    np.testing.assert_array_equal(step, steps)


def test_an_outlier_in_a_wide_channel_costs_the_others_nothing(variant: str) -> None:
    x = np.full((1, 64), 1.0, F)
    x[0, 5] = 200.0
    wide = i32(range(64))
    narrow, _ = testing.quantize(variant, "int8", x, i32([]))
    spread, _ = testing.quantize(variant, "int8", x, wide)
    assert narrow[0, 0] == 1 and narrow[0, 5] == 127
    assert spread[0, 0] == 163 and spread[0, 5] == 32512


def test_norm_adds_normalises_and_quantizes(variant: str) -> None:
    rng = np.random.default_rng(3)
    m, k = 5, 192
    residual, delta = rng.normal(size=(2, m, k)).astype(F)
    weight, wide = rng.uniform(0.5, 2, k).astype(F), wide_channels(rng, k, 64)
    total, normed, (q, step) = testing.norm(variant, "int8", residual, delta, weight, 1e-5, wide)
    np.testing.assert_array_equal(total, residual + delta)
    exact = total / np.sqrt((total.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(normed, exact, rtol=2e-6)
    expected, steps = quantized(normed, wide)
    np.testing.assert_array_equal(q, expected)
    np.testing.assert_array_equal(step, steps)


def test_norm_without_a_delta_leaves_the_residual(variant: str) -> None:
    residual = np.random.default_rng(4).normal(size=(2, 64)).astype(F)
    total, _, _ = testing.norm(variant, "int8", residual, None, np.ones(64, F), 1e-5, i32([]))
    np.testing.assert_array_equal(total, residual)


def integer_product(x: Any, w8: Any, scale: Any, wide: Any) -> Any:
    q, step = quantized(x, wide)
    sums = q.astype(np.int64) @ w8.astype(np.int64).T
    assert np.abs(sums).max() < 2**31
    return sums.astype(F) * scale * step[:, None]


SHAPES = [(1, 32, 32, 0), (2, 40, 96, 64), (3, 64, 64, 64), (6, 33, 128, 64), (7, 96, 576, 64), (13, 64, 1536, 128)]
SHAPES += [(40, 70, 192, 64), (300, 32, 2176, 64)]


@pytest.mark.parametrize(("m", "n", "k", "count"), SHAPES)
@pytest.mark.parametrize("fmt", ["int8", "nib4"])
def test_integer_gemm_is_exact(variant: str, fmt: str, m: int, n: int, k: int, count: int) -> None:
    rng = np.random.default_rng(m * k)
    wide = wide_channels(rng, k, count)
    if fmt == "nib4":
        q, a, b, w8 = random_nibbles(rng, n, k)
        packed = _native.pack_nib4(variant, q, a, b, wide)
    else:
        w8 = rng.integers(-127, 128, (n, k), dtype=np.int8)
        packed = _native.pack_int8(variant, w8, wide)
    scale = rng.uniform(1e-4, 1e-2, n).astype(F)
    x = spread_rows(rng, m, k, wide)
    y, _ = testing.gemm(variant, fmt, packed, n, scale, wide, x, "", _native.Team(1))
    np.testing.assert_array_equal(y, integer_product(x, w8, scale, wide))


def test_largest_sums_stay_exact(variant: str) -> None:
    k, wide = 1024, i32(range(256))
    w8 = np.full((32, k), 127, np.int8)
    x = np.full((2, k), 127.0, F)
    x[:, :256] = 32512.0
    y, _ = testing.gemm(
        variant, "int8", _native.pack_int8(variant, w8, wide), 32, np.ones(32, F), wide, x, "", _native.Team(1)
    )
    np.testing.assert_array_equal(y, np.full((2, 32), F(127 * (256 * 32512 + 768 * 127))))


@pytest.mark.parametrize("fmt", ["int8", "bf16"])
def test_gemm_rows_do_not_depend_on_their_batch(variant: str, fmt: str) -> None:
    rng = np.random.default_rng(9)
    n, k, wide = 96, 160, i32([])
    if fmt == "bf16":
        packed, scale = _native.pack_bf16(variant, to_bf16(rng.normal(size=(n, k)))), None
    else:
        packed, scale = _native.pack_int8(variant, rng.integers(-127, 128, (n, k), dtype=np.int8), wide), np.ones(n, F)
    x = rng.normal(size=(259, k)).astype(F)

    def product(rows: Any, threads: int = 1) -> Any:
        return testing.gemm(variant, fmt, packed, n, scale, wide, rows, "", _native.Team(threads))[0]

    whole = product(x, 2)
    for m in (1, 2, 5, 6, 7, 12, 13, 33, 100):
        np.testing.assert_array_equal(product(x[:m]), whole[:m])


@pytest.mark.parametrize(("m", "k"), [(1, 64), (7, 1536), (20, 2080)])
def test_bf16_gemm_is_close_to_float64(variant: str, m: int, k: int) -> None:
    rng = np.random.default_rng(k)
    w, x = to_bf16(rng.normal(size=(48, k))), rng.normal(size=(m, k)).astype(F)
    y, _ = testing.gemm(variant, "bf16", _native.pack_bf16(variant, w), 48, None, i32([]), x, "", _native.Team(1))
    exact = from_bf16(to_bf16(x)).astype(np.float64) @ from_bf16(w).T.astype(np.float64)
    np.testing.assert_allclose(y, exact, atol=2e-6 * k, rtol=0)


@pytest.mark.parametrize("m", [1, 5, 40])
def test_a_team_that_outnumbers_the_tiles_gets_the_same_bits(variant: str, m: int) -> None:
    rng = np.random.default_rng(m)
    n, k, wide = 80, 160, wide_channels(rng, 160, 64)
    w8, scale = rng.integers(-127, 128, (n, k), dtype=np.int8), rng.uniform(1e-3, 1e-2, n).astype(F)
    x = rng.normal(size=(m, k)).astype(F)
    packed, halves = _native.pack_int8(variant, w8, wide), _native.pack_bf16(variant, to_bf16(rng.normal(size=(n, k))))
    sums = testing.gemm(variant, "bf16", halves, n, None, i32([]), x, "", _native.Team(1))[0]
    for threads in (1, 2, 9):
        team = _native.Team(threads)
        y, _ = testing.gemm(variant, "int8", packed, n, scale, wide, x, "", team)
        np.testing.assert_array_equal(y, integer_product(x, w8, scale, wide))
        np.testing.assert_array_equal(testing.gemm(variant, "bf16", halves, n, None, i32([]), x, "", team)[0], sums)


@pytest.mark.parametrize("m", [1, 8, 50])
def test_gelu_is_the_tanh_form(variant: str, m: int) -> None:
    rng = np.random.default_rng(m)
    n, k, wide = 128, 96, i32([])
    w8, scale = rng.integers(-127, 128, (n, k), dtype=np.int8), rng.uniform(1e-3, 1e-2, n).astype(F)
    x = rng.normal(size=(m, k)).astype(F)
    y, _ = testing.gemm(
        variant, "int8", _native.pack_int8(variant, w8, wide), n, scale, wide, x, "gelu", _native.Team(1)
    )
    pairs = integer_product(x, w8, scale, wide).astype(np.float64).reshape(m, -1, 2, 16)
    gate, up = pairs[:, :, 0].reshape(m, -1), pairs[:, :, 1].reshape(m, -1)
    gelu = gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
    np.testing.assert_allclose(y, gelu * up, rtol=3e-6, atol=1e-6)


def test_softcap_is_cap_times_tanh(variant: str) -> None:
    x = np.linspace(-400, 400, 8000).astype(F)
    x[:4] = [-3e38, 3e38, 0, -0.0]
    for cap in (2.0, 30.0, 72.1):
        capped = testing.softcap(variant, x, cap)
        np.testing.assert_allclose(capped, cap * np.tanh(x.astype(np.float64) / cap), atol=3e-7 * cap, rtol=0)


def test_a_delta_with_a_norm_is_normed_before_it_is_added(variant: str) -> None:
    rng = np.random.default_rng(3)
    residual, delta = rng.normal(size=(2, 5, 192)).astype(F)
    weight, behind = rng.uniform(0.5, 2, (2, 192)).astype(F)
    total, normed, _ = testing.norm(variant, "int8", residual, delta, weight, 1e-5, i32([]), behind)
    exact = residual + delta / np.sqrt((delta.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-5) * behind
    np.testing.assert_allclose(total, exact, rtol=2e-6, atol=1e-6)
    exact = total / np.sqrt((total.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(normed, exact, rtol=2e-6)


def test_embeddings_are_scaled(variant: str) -> None:
    rows = np.random.default_rng(1).normal(size=(5, 64)).astype(F)
    np.testing.assert_array_equal(testing.embed(variant, rows, "f32", 64, i32([3, 0]), 25.3), rows[[3, 0]] * F(25.3))


@pytest.mark.parametrize("m", [1, 8, 50])
def test_silu_is_fused_on_interleaved_columns(variant: str, m: int) -> None:
    rng = np.random.default_rng(m)
    n, k, wide = 128, 96, i32([])
    w8, scale = rng.integers(-127, 128, (n, k), dtype=np.int8), rng.uniform(1e-3, 1e-2, n).astype(F)
    x = rng.normal(size=(m, k)).astype(F)
    packed = _native.pack_int8(variant, w8, wide)
    y, _ = testing.gemm(variant, "int8", packed, n, scale, wide, x, "silu", _native.Team(1))
    pairs = integer_product(x, w8, scale, wide).astype(np.float64).reshape(m, -1, 2, 16)
    gate, up = pairs[:, :, 0].reshape(m, -1), pairs[:, :, 1].reshape(m, -1)
    np.testing.assert_allclose(y, gate / (1 + np.exp(-gate)) * up, rtol=3e-6, atol=1e-30)


def test_embedding_formats(variant: str) -> None:
    rng = np.random.default_rng(1)
    rows, ids = rng.normal(size=(5, 64)).astype(F), i32([4, 0, 2])
    halves = rows.astype(np.float16)
    halves[0, :3] = [6e-8, -0.0, 65504]
    blocks = np.zeros((5, 2, 34), np.uint8)
    scales, q = rng.uniform(0.01, 0.1, (5, 2)).astype(np.float16), rng.integers(-127, 128, (5, 2, 32), dtype=np.int8)
    blocks[:, :, :2], blocks[:, :, 2:] = scales[..., None].view(np.uint8), q.view(np.uint8)
    cases = {
        "f32": (rows, rows),
        "f16": (halves.view(np.uint16), halves.astype(F)),
        "bf16": (to_bf16(rows), from_bf16(to_bf16(rows))),
        "q8_0": (blocks.reshape(5, 68), (scales.astype(F)[..., None] * q).reshape(5, 64)),
    }
    for fmt, (stored, expected) in cases.items():
        np.testing.assert_array_equal(testing.embed(variant, stored, fmt, 64, ids), expected[ids], err_msg=fmt)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rope_dim"), [(3, 1, 64, 64), (4, 2, 96, 64), (2, 2, 32, 32)]
)
def test_rope_and_cache_append(variant: str, heads: int, kv_heads: int, head_dim: int, rope_dim: int) -> None:
    rng = np.random.default_rng(head_dim)
    positions = i32([3, 0, 70, 129, 128])
    qkv = rng.normal(size=(5, heads + 2 * kv_heads, head_dim)).astype(F)
    angle = rng.uniform(0, 6, (130, rope_dim // 2))
    cos, sin = np.cos(angle).astype(F), np.sin(angle).astype(F)
    got_q, got_k, got_v = testing.rope_append(
        variant, qkv.reshape(5, -1), positions, cos, sin, heads, kv_heads, head_dim, 0.5
    )
    half, c, s = rope_dim // 2, cos[positions][:, None], sin[positions][:, None]
    turned = qkv.copy()
    a, b = qkv[..., :half], qkv[..., half:rope_dim]
    turned[..., :half], turned[..., half:rope_dim] = a * c - b * s, b * c + a * s
    np.testing.assert_allclose(got_q.reshape(5, heads, head_dim), turned[:, :heads] * F(0.5), rtol=1e-6, atol=1e-6)
    keys, values = from_bf16(got_k), from_bf16(got_v)
    np.testing.assert_allclose(keys[positions], turned[:, heads : heads + kv_heads], rtol=2**-8, atol=1e-6)
    np.testing.assert_array_equal(got_v[positions], to_bf16(qkv[:, heads + kv_heads :]))
    untouched = np.setdiff1d(np.arange(130), positions)
    assert not keys[untouched].any() and not values[untouched].any()


def test_heads_get_their_bias_and_norm_before_they_turn(variant: str) -> None:
    rng = np.random.default_rng(2)
    heads, kv_heads, head_dim = 3, 1, 64
    qkv = rng.normal(size=(4, 5, head_dim)).astype(F)
    bias = rng.normal(size=(5, head_dim)).astype(F)
    norms = rng.uniform(0.5, 1.5, (2, head_dim)).astype(F)
    flat = (np.ones((4, 32), F), np.zeros((4, 32), F))
    got_q, got_k, got_v = testing.rope_append(
        variant, qkv.reshape(4, -1), i32(range(4)), *flat, heads, kv_heads, head_dim, 0.5, bias.ravel(), *norms, 1e-6
    )
    moved = (qkv + bias).astype(np.float64)
    normed = moved / np.sqrt((moved**2).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(got_q.reshape(4, heads, head_dim), normed[:, :3] * norms[0] * 0.5, rtol=2e-6, atol=1e-7)
    np.testing.assert_allclose(from_bf16(got_k), normed[:, 3:4] * norms[1], rtol=2**-8)
    np.testing.assert_array_equal(got_v, to_bf16(qkv[:, 4:] + bias[4:]))


def test_the_cache_never_holds_infinities(variant: str) -> None:
    qkv = np.zeros((1, 3, 32), F)
    qkv[0, 1:, :3] = [np.nan, np.inf, -3e38]
    flat = (np.ones((1, 16), F), np.zeros((1, 16), F))
    _, keys, values = testing.rope_append(variant, qkv.reshape(1, -1), i32([0]), *flat, 1, 1, 32, 1.0)
    assert np.isfinite(from_bf16(keys)).all() and np.isfinite(from_bf16(values)).all()


def exact_attention(q: Any, keys: Any, values: Any, first: int, window: int = 0, cap: float = 0) -> Any:
    """float64 softmax with exponents of 2 over the stored bf16 values."""
    k, v = from_bf16(keys).astype(np.float64), from_bf16(values).astype(np.float64)
    group = q.shape[1] // k.shape[1]
    out = np.zeros(q.shape)
    for i in range(len(q)):
        for h in range(q.shape[1]):
            seen = slice(max(0, first + i + 1 - window) if window else 0, first + i + 1)
            s = k[seen, h // group] @ q[i, h].astype(np.float64)
            s = cap * np.tanh(s / cap) if cap else s
            p = np.exp2(s - s.max())
            out[i, h] = p @ v[seen, h // group] / p.sum()
    return out


def random_cache(rng: np.random.Generator, tokens: int, kv_heads: int, head_dim: int) -> tuple[Any, Any]:
    return to_bf16(rng.normal(size=(tokens, kv_heads, head_dim))), to_bf16(
        rng.normal(size=(tokens, kv_heads, head_dim))
    )


ATTENTION_CASES = [
    (1, 0, 3, 1, 64),
    (5, 0, 2, 2, 32),
    (1, 700, 9, 3, 64),
    (40, 250, 3, 1, 96),
    (3, 511, 8, 1, 128),
    (20, 0, 1, 1, 32),
]


@pytest.mark.parametrize(("m", "first", "heads", "kv_heads", "head_dim"), ATTENTION_CASES)
def test_attention_is_close_to_float64(
    variant: str, m: int, first: int, heads: int, kv_heads: int, head_dim: int
) -> None:
    rng = np.random.default_rng(m + first)
    keys, values = random_cache(rng, first + m, kv_heads, head_dim)
    q = (rng.normal(size=(m, heads, head_dim)) * 1.44 / np.sqrt(head_dim)).astype(F)
    table = i32(rng.permutation(-(-(first + m) // 64)))
    out, _ = testing.attention(variant, q, keys, values, table, first, 16)
    # Variants may round queries and weights to bf16 on the way.
    tolerance = 2e-2 if variant.startswith("amx") else 2e-6
    np.testing.assert_allclose(out, exact_attention(q, keys, values, first), atol=tolerance, rtol=0)


@pytest.mark.parametrize("window", [1, 7, 64, 65, 200, 256, 300, 513])
@pytest.mark.parametrize(("m", "first"), [(40, 250), (3, 511), (70, 0), (1, 900)])
def test_windows_and_caps_are_close_to_float64(variant: str, m: int, first: int, window: int) -> None:
    rng = np.random.default_rng(m + first + window)
    keys, values = random_cache(rng, first + m, 2, 64)
    q = (rng.normal(size=(m, 4, 64)) / 4).astype(F)
    table = i32(rng.permutation(-(-(first + m) // 64)))
    tolerance = 2e-2 if variant.startswith("amx") else 3e-6
    results = {}
    for cap, tile in ((0.0, 16), (3.0, 16), (0.0, 3), (3.0, 1)):
        out, _ = testing.attention(variant, q, keys, values, table, first, tile, 1, window, cap)
        np.testing.assert_allclose(out, exact_attention(q, keys, values, first, window, cap), atol=tolerance, rtol=0)
        np.testing.assert_array_equal(out, results.setdefault(cap, out))


def test_attention_bits_do_not_depend_on_tiles_or_blocks(variant: str) -> None:
    rng = np.random.default_rng(11)
    m, first, heads, kv_heads = 70, 300, 6, 2
    keys, values = random_cache(rng, first + m, kv_heads, 64)
    q = (rng.normal(size=(m, heads, 64)) / 3).astype(F)
    plain, _ = testing.attention(variant, q, keys, values, i32(range(6)), first, 16)
    for tile in (1, 3, 64):
        shuffled, _ = testing.attention(variant, q, keys, values, i32(rng.permutation(6)), first, tile)
        np.testing.assert_array_equal(shuffled, plain)
    for i in (0, 17, 69):
        seen = first + i + 1
        table = i32(range(-(-seen // 64)))
        alone, _ = testing.attention(variant, q[i : i + 1], keys[:seen], values[:seen], table, seen - 1, 1)
        np.testing.assert_array_equal(alone[0], plain[i])


def test_sharp_and_flat_softmax(variant: str) -> None:
    rng = np.random.default_rng(12)
    keys, values = random_cache(rng, 600, 1, 64)
    q = rng.normal(size=(2, 2, 64)).astype(F)
    q[0, 0], q[0, 1], q[1, 0] = 0, q[0, 1] * 40, q[1, 0] * 8
    out, _ = testing.attention(variant, q, keys, values, i32(range(10)), 598, 2)
    tolerance = 6e-2 if variant.startswith("amx") else 1e-5
    np.testing.assert_allclose(out, exact_attention(q, keys, values, 598), atol=tolerance, rtol=0)


@pytest.mark.parametrize("m", [1, 3, 9])
def test_variants_agree_on_every_integer(m: int) -> None:
    rng = np.random.default_rng(5)
    q, a, b, w8 = random_nibbles(rng, 64, 576)
    wide = wide_channels(rng, 576, 64)
    x = spread_rows(rng, m, 576, wide)
    team, scale = _native.Team(1), np.ones(64, F)
    for variant in VARIANTS:
        nibbles, bytes_ = _native.pack_nib4(variant, q, a, b, wide), _native.pack_int8(variant, w8, wide)
        for fmt, packed in (("nib4", nibbles), ("int8", bytes_)):
            y, _ = testing.gemm(variant, fmt, packed, 64, scale, wide, x, "", team)
            np.testing.assert_array_equal(y, integer_product(x, w8, scale, wide), err_msg=f"{variant} {fmt}")
