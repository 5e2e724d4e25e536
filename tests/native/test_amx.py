"""The AMX kernels, run on emulated tiles: the source is the one compiled for the real instructions.

The emulation traps on what the CPU would refuse (wrong shapes, tiles used before they are configured), so a crash here
is a kernel that would fault there.
"""

import numpy as np
import numpy.typing as npt
import pytest

from tailrace import _native

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
AMX = "amx-emulated"
TEAM = _native.Team(1)
NO_WIDE = np.zeros(0, np.int32)

pytestmark = pytest.mark.skipif(
    AMX not in _native.test_variants(), reason="the emulated variant is built for x86-64 with AVX2 only"
)


def wide_channels(k: int, count: int, seed: int = 0) -> I32:
    return np.sort(np.random.default_rng(seed).permutation(k)[:count]).astype(np.int32)


def activations(m: int, k: int, wide: I32, seed: int = 1) -> F32:
    """Rows with outliers in the wide channels; row 2 is zero, row 3 has only outliers worth a step."""
    x = np.random.default_rng(seed).standard_normal((m, k)).astype(np.float32)
    x[:, wide] *= 80
    if m > 3:
        x[2] = 0
        x[3, wide] *= 1000
    return x


def quantized(x: F32, wide: I32) -> tuple[I32, F32]:
    """The canonical integers and steps, in NumPy."""
    is_wide = np.isin(np.arange(x.shape[1]), wide)
    narrow, large = np.abs(np.where(is_wide, 0, x)).max(1), np.abs(np.where(is_wide, x, 0)).max(1)
    step = np.maximum(narrow / np.float32(127), large / np.float32(32512)).astype(np.float32)
    inverse = np.where(step > 0, np.float32(1) / np.where(step > 0, step, 1), 0).astype(np.float32)
    return np.rint(x * inverse[:, None]).astype(np.int32), step


def int8_layer(n: int, k: int, seed: int = 2) -> tuple[np.ndarray, F32]:
    rng = np.random.default_rng(seed)
    return rng.integers(-127, 128, (n, k)).astype(np.int8), rng.uniform(0.001, 0.01, n).astype(np.float32)


def nib4_layer(n: int, k: int, seed: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """q, a, b and the int8 weights they mean."""
    rng = np.random.default_rng(seed)
    q = rng.integers(0, 16, (n, k)).astype(np.uint8)
    a = rng.integers(-500, 501, (n, k // 32)).astype(np.int16)
    b = rng.integers(-400, 401, (n, k // 32)).astype(np.int16)
    w = (np.repeat(a, 32, 1).astype(np.int32) * q + np.repeat(b, 32, 1)) >> 6
    return q, a, b, w.astype(np.int8)


def multiply(
    variant: str,
    fmt: str,
    packed: np.ndarray,
    n: int,
    scale: F32 | None,
    wide: I32,
    x: F32,
    gate: str = "",
    team: "_native.Team" = TEAM,
) -> F32:
    y: F32 = _native.testing.gemm(variant, fmt, packed, n, scale, wide, x, gate, team)[0]
    return y


def int8_product(variant: str, w: np.ndarray, scale: F32, wide: I32, x: F32, gate: str = "") -> F32:
    return multiply(variant, "int8", _native.pack_int8(variant, w, wide), len(w), scale, wide, x, gate)


SHAPES = [(32, 32, 0), (40, 64, 64), (70, 96, 64), (64, 576, 64), (33, 1536, 128), (96, 640, 192), (1100, 64, 64)]


# ---- quantized rows ----


@pytest.mark.parametrize(("k", "count"), [(32, 0), (64, 64), (96, 64), (576, 64), (1536, 256)])
def test_quantized_rows_are_the_canonical_integers(k: int, count: int) -> None:
    wide = wide_channels(k, count)
    x = activations(37, k, wide)
    q, step = _native.testing.quantize(AMX, "int8", x, wide)
    expected_q, expected_step = quantized(x, wide)
    np.testing.assert_array_equal(step, expected_step)
    np.testing.assert_array_equal(q, expected_q)


def test_every_16_bit_value_survives_the_split_in_two_bytes() -> None:
    values = np.arange(-32512, 32513, dtype=np.float32)
    rows = np.zeros((len(values) // 63 + 1, 64), np.float32)
    rows[:, 0] = 32512  # fixes the step at 1
    padded = np.zeros(rows.shape[0] * 63, np.float32)
    padded[: len(values)] = values
    rows[:, 1:] = padded.reshape(-1, 63)
    q, step = _native.testing.quantize(AMX, "int8", rows, np.arange(64, dtype=np.int32))
    assert (step == 1).all()
    np.testing.assert_array_equal(q, rows.astype(np.int32))


# ---- integer products ----


@pytest.mark.parametrize(("n", "k", "count"), SHAPES)
@pytest.mark.parametrize("m", [1, 3, 16, 17, 33, 70])
def test_int8_products_are_exact(n: int, k: int, count: int, m: int) -> None:
    wide = wide_channels(k, count)
    w, scale = int8_layer(n, k)
    x = activations(m, k, wide)
    q, step = quantized(x, wide)
    total = q.astype(np.int64) @ w.astype(np.int64).T
    expected = (total.astype(np.float32) * scale) * step[:, None]
    np.testing.assert_array_equal(int8_product(AMX, w, scale, wide, x), expected)


@pytest.mark.parametrize("other", [v for v in _native.test_variants() if v != AMX])
@pytest.mark.parametrize("gate", ["", "silu", "gelu"])
@pytest.mark.parametrize(("n", "k", "count"), [(64, 96, 64), (128, 576, 64), (64, 1536, 128)])
def test_every_variant_gives_the_same_bits(other: str, gate: str, n: int, k: int, count: int) -> None:
    wide = wide_channels(k, count)
    w, scale = int8_layer(n, k)
    x = activations(40, k, wide)
    q, a, b, w4 = nib4_layer(n, k)
    np.testing.assert_array_equal(
        int8_product(AMX, w, scale, wide, x, gate), int8_product(other, w, scale, wide, x, gate)
    )
    ours = multiply(AMX, "nib4", _native.pack_nib4(AMX, q, a, b, wide), n, scale, wide, x, gate)
    np.testing.assert_array_equal(ours, int8_product(other, w4, scale, wide, x, gate))


def test_the_largest_sums_are_exact() -> None:
    k, wide = 4096, wide_channels(4096, 64)
    w = np.full((32, k), -127, np.int8)
    x = np.full((2, k), -127, np.float32)
    x[:, wide] = 32512
    x[1] = -x[1]
    y = int8_product(AMX, w, np.ones(32, np.float32), wide, x)
    total = -127 * (64 * 32512 - (k - 64) * 127)
    np.testing.assert_array_equal(y, np.float32([[total] * 32, [-total] * 32]))


@pytest.mark.parametrize("fmt", ["int8", "bf16"])
@pytest.mark.parametrize("gate", ["", "silu", "gelu"])
def test_a_row_does_not_depend_on_its_neighbours(fmt: str, gate: str) -> None:
    """Alone, in any batch, at any place, with any thread count: the same bits."""
    n, k = 96, 160
    wide = wide_channels(k, 64) if fmt == "int8" else NO_WIDE
    w, scale = int8_layer(n, k)
    if fmt == "int8":
        args = (_native.pack_int8(AMX, w, wide), n, scale, wide)
    else:
        args = (_native.pack_bf16(AMX, bf16_bits(w / np.float32(99))), n, None, wide)
    x = activations(1100, k, wide)
    alone = np.concatenate([multiply(AMX, fmt, *args, x[i : i + 1], gate) for i in range(0, 1100, 37)])
    for m in (1100, 641, 64, 48, 32, 31, 17, 16, 15, 2):
        y = multiply(AMX, fmt, *args, x[:m], gate, _native.Team(1 + m % 2))
        np.testing.assert_array_equal(y[::37], alone[: len(range(0, m, 37))])
    np.testing.assert_array_equal(multiply(AMX, fmt, *args, x[::-1].copy(), gate)[::-1][::37], alone)


# ---- bf16 ----


def bf16_bits(x: np.ndarray) -> npt.NDArray[np.uint16]:
    """Nearest even; finite numbers."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def from_bits(bits: np.ndarray) -> F32:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def tile_dot(x: F32, w: F32) -> F32:
    """Step after step, as TDPBF16PS is specified. Products of bf16 are exact in double."""
    total = np.zeros((len(x), len(w)), np.float32)
    for step in range(0, x.shape[1], 32):
        part = np.zeros((2, len(x), len(w)), np.float32)
        for k in range(step, step + 32):
            product = x[:, k : k + 1].astype(np.float64) * w[:, k].astype(np.float64)
            part[k % 2] = (part[k % 2].astype(np.float64) + product).astype(np.float32)
        total = total + (part[0] + part[1])
    return total


@pytest.mark.parametrize(("n", "k"), [(32, 32), (40, 96), (64, 576)])
@pytest.mark.parametrize("m", [1, 20, 35])
def test_bf16_products_follow_the_instruction(n: int, k: int, m: int) -> None:
    rng = np.random.default_rng(n + m)
    bits = bf16_bits(rng.standard_normal((n, k)) * 0.05)
    x = rng.standard_normal((m, k)).astype(np.float32)
    y = multiply(AMX, "bf16", _native.pack_bf16(AMX, bits), n, None, NO_WIDE, x)
    np.testing.assert_array_equal(y, tile_dot(from_bits(bf16_bits(x)), from_bits(bits)))
    exact = from_bits(bf16_bits(x)).astype(np.float64) @ from_bits(bits).astype(np.float64).T
    np.testing.assert_allclose(y, exact, atol=1e-4)


def test_denormal_products_are_flushed() -> None:
    w = np.full((32, 32), bf16_bits(np.float32([2.0**-100]))[0], np.uint16)
    x = np.full((1, 32), 2.0**-40, np.float32)
    assert (multiply(AMX, "bf16", _native.pack_bf16(AMX, w), 32, None, NO_WIDE, x) == 0).all()


# ---- attention ----


def attend(q: F32, keys: np.ndarray, values: np.ndarray, first: int, tile: int, table: I32 | None = None) -> F32:
    blocks = (len(keys) + 63) // 64
    table = np.arange(blocks, dtype=np.int32) if table is None else table
    out: F32 = _native.testing.attention(AMX, q, keys, values, table, first, tile)[0]
    return out


def random_context(m: int, heads: int, kv_heads: int, head_dim: int, tokens: int, sharp: float = 1.0):
    rng = np.random.default_rng(m + heads + head_dim)
    q = (rng.standard_normal((m, heads, head_dim)) * (sharp * 1.4427 / np.sqrt(head_dim))).astype(np.float32)
    keys, values = (bf16_bits(rng.standard_normal((tokens, kv_heads, head_dim))) for _ in range(2))
    return q, keys, values


def exact_attention(q: F32, keys: np.ndarray, values: np.ndarray, first: int) -> np.ndarray:
    group = q.shape[1] // keys.shape[1]
    k = np.repeat(from_bits(keys), group, 1).astype(np.float64)
    v = np.repeat(from_bits(values), group, 1).astype(np.float64)
    s = np.einsum("mhd,thd->mht", from_bits(bf16_bits(q)).astype(np.float64), k)
    hidden = np.arange(len(keys))[None] > first + np.arange(len(q))[:, None]
    s[np.broadcast_to(hidden[:, None], s.shape)] = -np.inf
    p = 2 ** (s - s.max(-1, keepdims=True))
    return np.einsum("mht,thd->mhd", p / p.sum(-1, keepdims=True), v)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (9, 3), (8, 1)])
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128])
def test_attention_is_close_to_exact(heads: int, kv_heads: int, head_dim: int) -> None:
    q, keys, values = random_context(300, heads, kv_heads, head_dim, 300)
    expected = exact_attention(q, keys, values, 0)
    error = np.abs(attend(q, keys, values, 0, 32) - expected)
    assert error.mean() < 0.004 * np.abs(expected).mean()
    assert error.max() < 0.02


def test_sharp_attention_is_close_to_exact() -> None:
    q, keys, values = random_context(40, 3, 1, 64, 300, sharp=30.0)
    np.testing.assert_allclose(attend(q, keys, values, 260, 8), exact_attention(q, keys, values, 260), atol=0.02)


def test_attention_does_not_depend_on_chunks_tiles_or_blocks() -> None:
    tokens = 580
    q, keys, values = random_context(tokens, 6, 2, 64, tokens)
    whole = attend(q, keys, values, 0, 32)
    rng = np.random.default_rng(0)
    for first in (0, 1, 15, 63, 64, 200, 255, 256, 257, 511, 512, 579):
        for count in (1, 2, 7, 33):
            end = min(first + count, tokens)
            table = rng.permutation(12)[: (end + 63) // 64].astype(np.int32)
            for tile in (1, 5, 32):
                part = attend(q[first:end], keys[:end], values[:end], first, tile, table)
                np.testing.assert_array_equal(part, whole[first:end])


def test_keys_a_row_does_not_see_do_not_matter() -> None:
    """Later tokens of the cache may hold anything finite."""
    q, keys, values = random_context(20, 3, 1, 64, 300)
    clean = attend(q, keys, values, 70, 20)
    keys[90:], values[90:] = 0x7F7F, 0xFF7F  # the largest bf16 numbers
    np.testing.assert_array_equal(attend(q, keys, values, 70, 20), clean)


# ---- rows ----


def test_norm_and_rope_are_those_of_the_other_variants() -> None:
    rng = np.random.default_rng(5)
    x, delta = rng.standard_normal((2, 5, 192)).astype(np.float32)
    weight = rng.uniform(0.5, 2, 192).astype(np.float32)
    wide = wide_channels(192, 64)
    qkv = rng.standard_normal((3, 5 * 64)).astype(np.float32)
    cos, sin = rng.standard_normal((2, 100, 32)).astype(np.float32)
    positions = np.array([0, 70, 71], np.int32)
    ours = _native.testing.norm(AMX, "int8", x, delta, weight, 1e-5, wide)
    theirs = _native.testing.norm("portable", "int8", x, delta, weight, 1e-5, wide)
    for a, b in zip([*ours[:2], *ours[2]], [*theirs[:2], *theirs[2]], strict=True):
        np.testing.assert_array_equal(a, b)
    rope = [_native.testing.rope_append(v, qkv, positions, cos, sin, 3, 1, 64, 0.18) for v in (AMX, "portable")]
    for a, b in zip(*rope, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_real_variant_is_offered_only_where_it_can_run() -> None:
    features = _native.cpu_features()
    needed = ("amx_tile", "amx_int8", "amx_bf16", "amx_permitted", "avx512")
    assert ("amx" in _native.variants()) == all(features[name] for name in needed)
    assert AMX not in _native.variants()
