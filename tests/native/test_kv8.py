"""int8 keys and values: what is stored, attention over it, and one set of bits whatever the cut and the variant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tailrace import _native
from tests.native.test_kernels import ATTENTION_CASES
from tests.native.tiny import i32

F = np.float32
VARIANTS = _native.test_variants()
testing = _native.testing


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def quantized(x: Any) -> tuple[Any, Any]:
    """Integers [..., D] and steps [...] of finite float32 rows, as the cache stores them."""
    step = (np.abs(x).max(-1) / F(127)).astype(F)
    inverse = np.where(step > 0, F(1) / np.where(step > 0, step, 1), 0).astype(F)
    return np.rint(x * inverse[..., None]).astype(np.int8), step


def append(variant: str, rows: Any, positions: Any) -> Any:
    """Appends K and V rows [M, 2, heads, D] without turning them: keys, values, their steps."""
    m, _, kv_heads, head_dim = rows.shape
    qkv = np.concatenate([np.zeros((m, kv_heads, head_dim), F), rows[:, 0], rows[:, 1]], 1)
    half = (int(positions.max()) + 1, head_dim // 2)
    flat = (np.ones(half, F), np.zeros(half, F))
    args = (variant, qkv.reshape(m, -1), positions, *flat, kv_heads, kv_heads, head_dim, 1.0)
    return testing.rope_append(*args, kv="int8")[1:]


@pytest.mark.parametrize(("kv_heads", "head_dim"), [(1, 64), (3, 32), (2, 96), (1, 256)])
def test_each_token_and_head_gets_its_step(variant: str, kv_heads: int, head_dim: int) -> None:
    rng = np.random.default_rng(head_dim)
    positions = i32([3, 0, 70, 129, 128])
    rows = (rng.normal(size=(5, 2, kv_heads, head_dim)) * rng.uniform(0.01, 50, (5, 2, kv_heads, 1))).astype(F)
    rows[2, :, 0] = 0
    keys, values, key_steps, value_steps = append(variant, rows, positions)
    for found, steps, x in ((keys, key_steps, rows[:, 0]), (values, value_steps, rows[:, 1])):
        expected, expected_steps = quantized(x)
        np.testing.assert_array_equal(found[positions], expected)
        np.testing.assert_array_equal(steps[positions], expected_steps)
        untouched = np.setdiff1d(np.arange(130), positions)
        assert not found[untouched].any() and not steps[untouched].any()


def test_the_cache_never_holds_infinities(variant: str) -> None:
    rows = np.ones((1, 2, 1, 32), F)
    rows[..., :4] = [np.nan, np.inf, -np.inf, -3e38]
    keys, values, *steps = append(variant, rows, i32([0]))
    for integers, step in zip((keys, values), steps, strict=True):
        assert step.tolist() == [[F(3e38) / F(127)]]
        assert integers[0, 0, :4].tolist() == [0, 0, 0, -127]


class Context:
    """A random cache, and exact attention over it."""

    def __init__(self, tokens: int, kv_heads: int, head_dim: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        pairs = [quantized(rng.normal(size=(tokens, kv_heads, head_dim)).astype(F)) for _ in range(2)]
        (self.keys, key_steps), (self.values, value_steps) = pairs
        self.steps = np.stack([key_steps, value_steps])
        self.rng = rng

    def queries(self, m: int, heads: int, sharp: float = 1.0) -> Any:
        head_dim = self.keys.shape[-1]
        return (self.rng.normal(size=(m, heads, head_dim)) * sharp * 1.44 / np.sqrt(head_dim)).astype(F)

    def attend(
        self, variant: str, q: Any, first: int, tile: int, window: int = 0, cap: float = 0, table: Any = None
    ) -> Any:
        blocks = -(-len(self.keys) // 64)
        table = i32(range(blocks)) if table is None else i32(table)
        args = (self.keys, self.values, table, first, tile, 1, window, cap, self.steps)
        return testing.attention(variant, q, *args)[0]

    def exact(self, q: Any, first: int, window: int = 0, cap: float = 0) -> Any:
        floats = self.steps.astype(np.float64)[..., None]
        k, v = self.keys * floats[0], self.values * floats[1]
        group = q.shape[1] // k.shape[1]
        out = np.zeros(q.shape)
        for i in range(len(q)):
            seen = slice(max(0, first + i + 1 - window) if window else 0, first + i + 1)
            for h in range(q.shape[1]):
                s = k[seen, h // group] @ q[i, h].astype(np.float64)
                s = cap * np.tanh(s / cap) if cap else s
                p = np.exp2(s - s.max())
                out[i, h] = p @ v[seen, h // group] / p.sum()
        return out


CASES = [*ATTENTION_CASES, (2, 300, 4, 1, 256)]


@pytest.mark.parametrize(("m", "first", "heads", "kv_heads", "head_dim"), CASES)
def test_only_the_rounding_of_keys_and_values_costs_accuracy(
    variant: str, m: int, first: int, heads: int, kv_heads: int, head_dim: int
) -> None:
    context = Context(first + m, kv_heads, head_dim, seed=m + first)
    q = context.queries(m, heads)
    out = context.attend(variant, q, first, 16, table=context.rng.permutation(-(-(first + m) // 64)))
    np.testing.assert_allclose(out, context.exact(q, first), atol=1e-4, rtol=0)


@pytest.mark.parametrize("window", [1, 7, 64, 65, 200, 256, 300, 513])
@pytest.mark.parametrize(("m", "first"), [(40, 250), (3, 511), (70, 0), (1, 900)])
def test_windows_and_caps(variant: str, m: int, first: int, window: int) -> None:
    context = Context(first + m, 2, 64, seed=m + first + window)
    q = context.queries(m, 4, sharp=1.4)
    results: dict[float, Any] = {}
    for cap, tile in ((0.0, 16), (3.0, 16), (0.0, 3), (3.0, 1)):
        out = context.attend(variant, q, first, tile, window, cap)
        np.testing.assert_allclose(out, context.exact(q, first, window, cap), atol=3e-4, rtol=0)
        np.testing.assert_array_equal(out, results.setdefault(cap, out))


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (4, 1, 96), (2, 2, 32)])
def test_one_set_of_bits_for_any_tile_block_order_and_variant(heads: int, kv_heads: int, head_dim: int) -> None:
    m, first = 70, 300
    context = Context(first + m, kv_heads, head_dim)
    q = context.queries(m, heads, sharp=3)
    plain = context.attend("portable", q, first, 16)
    for variant in VARIANTS:
        for tile in (1, 3, 64):
            np.testing.assert_array_equal(context.attend(variant, q, first, tile), plain)
    moved = Context(first + m, kv_heads, head_dim)
    for variant in VARIANTS:
        out = moved.attend(variant, q, first, 7, table=np.random.default_rng(1).permutation(6))
        np.testing.assert_array_equal(out, plain)


def test_keys_a_row_does_not_see_do_not_matter(variant: str) -> None:
    context = Context(300, 1, 64)
    q = context.queries(20, 3)
    clean = context.attend(variant, q, 70, 20)
    context.keys[90:], context.values[90:], context.steps[:, 90:] = 127, -127, 3e36
    np.testing.assert_array_equal(context.attend(variant, q, 70, 20), clean)


@pytest.mark.parametrize("head_dim", [512, 1024])
def test_the_largest_sums_stay_within_32_bits(variant: str, head_dim: int) -> None:
    context = Context(256, 1, head_dim)
    context.keys[:], context.values[:], context.steps[:] = -127, 127, 1e-6
    q = np.full((1, 1, head_dim), -1e-3, F)
    out = context.attend(variant, q, 255, 1)
    np.testing.assert_allclose(out, np.full(q.shape, 127e-6), rtol=1e-4)
    context.keys[1:] = 127  # key 0 alone keeps a positive score
    sharp = context.attend(variant, q * F(3e7), 255, 1)
    np.testing.assert_allclose(sharp, np.full(q.shape, 127e-6), rtol=1e-4)


def test_values_too_small_for_a_step_are_nothing(variant: str) -> None:
    context = Context(64, 1, 32)
    context.steps[1] = 0
    assert not context.attend(variant, context.queries(1, 1), 63, 1).any()
