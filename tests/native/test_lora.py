"""Low-rank additions: the term against float64, whole models against NumPy ones, the same bits in any company."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tailrace import _native
from tests.native.tiny import (
    BLOCK,
    Dims,
    Weights,
    from_bf16,
    i32,
    native_model,
    numpy_logits,
    random_weights,
    run_chunked,
    to_bf16,
)

VARIANTS = _native.test_variants()
DIMS = Dims(layers=2, hidden=128, heads=4, kv_heads=2, head_dim=32, ffn=192, vocab=77)
PROJECTIONS = ("q", "k", "v", "o", "gate", "up", "down")
TOKENS = np.random.default_rng(5).integers(0, DIMS.vocab, 90).tolist()
NEAR = 0.03  # int8 and rounded K and V, as without adapters (test_forward)


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def sizes(dims: Dims, kind: str) -> tuple[int, int]:
    """(outputs, inputs)"""
    q, kv = dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim
    table = {"q": q, "k": kv, "v": kv, "o": dims.hidden, "gate": dims.ffn, "up": dims.ffn, "down": dims.hidden}
    return table[kind], {"o": q, "down": dims.ffn}.get(kind, dims.hidden)


@dataclass
class Additions:
    """An adapter as matrices: by projection and layer, A [rank, K], B [N, rank] (as float32) and the scale."""

    parts: dict[str, tuple[Any, Any, float]]
    bf16: bool = False

    def native(self, model: _native.Model) -> _native.Adapter:
        adapter = _native.Adapter(model)
        for name, (a, b, scale) in self.parts.items():
            adapter.set(name, *((to_bf16(a), to_bf16(b)) if self.bf16 else (a, b)), scale)
        return adapter

    def delta(self, name: str) -> Any:
        a, b, scale = self.parts[name]
        return scale * b.astype(np.float64) @ a.astype(np.float64)

    def added(self, dims: Dims, name: str, x: Any) -> Any:
        """What joins a fused linear's output, in the order of its rows."""
        kind, _, layer = name.partition(".")
        kinds = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}.get(kind, (kind,))
        if kind == "head":
            return 0.0
        found = [self._term(dims, f"{each}.{layer}", x) for each in kinds]
        if kind == "gate_up":
            return np.stack([one.reshape(len(x), -1, 16) for one in found], 2).reshape(len(x), -1)
        return np.concatenate(found, 1)

    def _term(self, dims: Dims, name: str, x: Any) -> Any:
        outputs, _ = sizes(dims, name.partition(".")[0])
        return x @ self.delta(name).T if name in self.parts else np.zeros((len(x), outputs))


def additions(
    dims: Dims, rank: int, seed: int = 0, *, kinds: tuple[str, ...] = PROJECTIONS, bf16: bool = False, size: float = 0.7
) -> Additions:
    rng = np.random.default_rng(seed)
    parts = {}
    for name in [f"{kind}.{layer}" for layer in range(dims.layers) for kind in kinds]:
        n, k = sizes(dims, name.partition(".")[0])
        a, b = (rng.normal(size=shape).astype(np.float32) for shape in ((rank, k), (n, rank)))
        a, b = a / np.float32(np.sqrt(k)), b * np.float32(size / np.sqrt(rank))
        parts[name] = (from_bf16(to_bf16(a)), from_bf16(to_bf16(b)), 0.5) if bf16 else (a, b, 0.5)
    return Additions(parts, bf16)


@pytest.fixture(scope="module")
def weights() -> Weights:
    return random_weights(DIMS, "int8", seed=1)


# ---- the term itself ----


@pytest.mark.parametrize("rank", [1, 8, 13, 64])
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("kind", ["v", "up"])
def test_the_term_is_scale_b_a_x(variant: str, rank: int, bf16: bool, kind: str, weights: Weights) -> None:
    """Within float32's rounding of a sum of that length, outside the projection's columns nothing, and the same bits
    for any number of rows at a time."""
    one = additions(DIMS, rank, kinds=(kind,), bf16=bf16)
    adapter = one.native(native_model(variant, weights))
    rng = np.random.default_rng(2)
    fused = {"v": "qkv.0", "up": "gate_up.0"}[kind]
    x = rng.normal(size=(7, DIMS.hidden)).astype(np.float32)
    y = rng.normal(size=(7, DIMS.shapes()[fused][0])).astype(np.float32)
    found = [_native.testing.low_rank(variant, adapter, x, y, strip) for strip in (1, 2, 3, 5, 7)]
    assert all((other == found[0]).all() for other in found)
    term = one.added(DIMS, fused, x.astype(np.float64))
    assert np.abs(found[0] - (y + term)).max() < 2e-6 * np.abs(term).max() + 3e-7 * np.abs(y).max()
    columns = term.any(0)
    assert columns.sum() == sizes(DIMS, kind)[0]
    assert (found[0][:, ~columns] == y[:, ~columns]).all()


def test_all_variants_give_the_term_the_same_bits(weights: Weights) -> None:
    one, rng = additions(DIMS, 16), np.random.default_rng(3)
    x, y = (rng.normal(size=(4, n)).astype(np.float32) for n in (DIMS.ffn, DIMS.hidden))
    only = Additions({"down.0": one.parts["down.0"]})
    found = [_native.testing.low_rank(v, only.native(native_model(v, weights)), x, y, 4) for v in VARIANTS]
    assert all((other == found[0]).all() for other in found)


# ---- in a model ----


def run(model: _native.Model, rows: list[tuple[list[int], Any]], kv: _native.KvCache, done: list[int]) -> Any:
    """Logits of every row of one step: (tokens, adapter or None) of each sequence, behind its `done` cached tokens."""
    width = 4
    counts = [len(tokens) for tokens, _ in rows]
    starts = np.concatenate([[0], np.cumsum(counts)])
    tables = np.arange(len(rows) * width).reshape(-1, width)
    flat = [token for tokens, _ in rows for token in tokens]
    adapters = [adapter for _, adapter in rows]
    model.forward(kv, i32(flat), i32(starts), i32(done), i32(tables), i32(range(len(flat))), adapters=adapters)
    return np.split(model.logits(), starts[1:-1])


def alone(model: _native.Model, adapter: Any, tokens: list[int] = TOKENS) -> Any:
    return run(model, [(tokens, adapter)], _native.KvCache(model, 4), [0])[0]


def similar(a: Any, b: Any) -> float:
    return float(np.sqrt(((a - b) ** 2).mean() / (b**2).mean()))


@pytest.mark.parametrize("bf16", [False, True])
def test_a_model_with_an_adapter_follows_the_numpy_one(variant: str, bf16: bool, weights: Weights) -> None:
    """With additions as large as the weights."""
    one = additions(DIMS, 16, bf16=bf16)
    model = native_model(variant, weights)
    wanted = numpy_logits(weights, TOKENS, lambda name, x: one.added(DIMS, name, x))
    plain = numpy_logits(weights, TOKENS)
    assert similar(plain, wanted) > 0.5
    assert similar(alone(model, one.native(model)), wanted) < NEAR


def test_every_projection_is_where_it_belongs(variant: str, weights: Weights) -> None:
    model = native_model(variant, weights)
    plain = numpy_logits(weights, TOKENS[:40])
    for kind in PROJECTIONS:
        one = additions(DIMS, 4, kinds=(kind,), size=2.0)
        wanted = numpy_logits(weights, TOKENS[:40], lambda name, x, one=one: one.added(DIMS, name, x))
        found = alone(model, one.native(model), TOKENS[:40])
        assert similar(found, wanted) < NEAR < similar(plain, wanted), kind


@pytest.mark.parametrize("departure", [{"activation": "gelu"}, {"bias": True, "head_norms": True, "out_norms": True}])
def test_departures_keep_their_order(variant: str, departure: dict[str, Any]) -> None:
    """The term joins before bias, head norms and the norms behind sublayers."""
    dims = Dims(hidden=128, ffn=192, **departure)
    weights = random_weights(dims, "int8", seed=4)
    model, one = native_model(variant, weights), additions(dims, 8)
    wanted = numpy_logits(weights, TOKENS, lambda name, x: one.added(dims, name, x))
    assert similar(alone(model, one.native(model)), wanted) < NEAR


def test_weights_with_the_adapter_merged_are_near(variant: str) -> None:
    """bf16 weights W + scale B A, made in float64, against W with the adapter beside it: both are rounded otherwise."""
    weights, one = random_weights(DIMS, "bf16", seed=6), additions(DIMS, 16)
    merged = random_weights(DIMS, "bf16", seed=6)
    for name in [name for name in DIMS.shapes() if name != "head"]:
        identity = np.eye(DIMS.shapes()[name][1])
        merged.dense[name] = merged.dense[name] + one.added(DIMS, name, identity).T
        merged.bits[name] = to_bf16(merged.dense[name])
    model = native_model(variant, weights)
    assert similar(alone(model, one.native(model)), run_chunked(native_model(variant, merged), TOKENS, 90)) < NEAR


@pytest.mark.parametrize("kv", ["bf16", "int8"])
def test_a_row_has_its_bits_in_any_company(variant: str, kv: Any, weights: Weights) -> None:
    """Beside other adapters and none, in chunks, on threads and ranks; rows without one as if none was there."""
    first, second = (additions(DIMS, rank, seed) for rank, seed in ((16, 1), (5, 2)))
    single, *others = (native_model(variant, weights, threads) for threads in (1, 2, [1, 1], [1, 1, 1]))
    a, b = first.native(single), second.native(single)
    expected = [run(single, [(TOKENS, one)], _native.KvCache(single, 4, kv), [0])[0] for one in (a, None, b, a)]
    assert (expected[1] == run_chunked(single, TOKENS, 90, kv=kv)).all()
    for model in (single, *others):
        together, cache = [], _native.KvCache(model, 16, kv)
        for start in range(0, 90, 30):
            part = TOKENS[start : start + 30]
            together.append(run(model, [(part, one) for one in (a, None, b, a)], cache, [start] * 4))
        for index, wanted in enumerate(expected):
            assert (np.concatenate([chunk[index] for chunk in together]) == wanted).all(), index


def test_the_last_layer_keeps_each_row_its_adapter(variant: str, weights: Weights) -> None:
    """Only some rows get logits: behind the last attention rows move together."""
    model = native_model(variant, weights)
    a, b = (additions(DIMS, 8, seed).native(model) for seed in (1, 2))
    kv, wanted = _native.KvCache(model, 12), [3, 19, 20, 58]
    tables = i32(np.arange(12).reshape(3, 4))
    tokens = TOKENS[:60]
    model.forward(kv, i32(tokens), i32([0, 20, 40, 60]), i32([0, 0, 0]), tables, i32(wanted), adapters=[a, None, b])
    found = model.logits()
    every = [alone(model, one, tokens[at : at + 20]) for at, one in ((0, a), (20, None), (40, b))]
    assert (found == np.stack([every[0][3], every[0][19], every[1][0], every[2][18]])).all()


def test_a_step_may_outlive_the_callers_adapter(weights: Weights) -> None:
    model = native_model(VARIANTS[0], weights, threads=2)
    one = additions(DIMS, 16)
    expected = alone(model, one.native(model))
    kv = _native.KvCache(model, 4)
    adapter = one.native(model)
    model.begin(kv, i32(TOKENS), i32([0, 90]), i32([0]), i32([[0, 1, 2, 3]]), i32(range(90)), adapters=[adapter])
    del adapter
    model.settle()
    assert (model.logits() == expected).all()


# ---- wrong calls ----


@pytest.mark.parametrize(
    ("name", "a", "b", "says"),
    [
        ("q.2", (4, 128), (128, 4), "names a layer"),
        ("q.x", (4, 128), (128, 4), "names a layer"),
        ("head.0", (4, 128), (128, 4), "not a projection"),
        ("q.0", (65, 128), (128, 65), "1 to 64 rows"),
        ("q.0", (0, 128), (128, 0), "1 to 64 rows"),
        ("q.0", (4, 64), (128, 4), "128 columns"),
        ("k.0", (4, 128), (128, 4), r"shape \[64, 4\]"),
        ("q.0", (4, 128), (128, 5), r"shape \[128, 4\]"),
        ("v.1", (4, 128), (64, 4), "set already"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, a: Any, b: Any, says: str, weights: Weights) -> None:
    adapter = additions(DIMS, 4, kinds=("v",)).native(native_model("portable", weights))
    with pytest.raises(ValueError, match=says):
        adapter.set(name, np.zeros(a, np.float32), np.zeros(b, np.float32), 1.0)


def test_types_and_companies_that_do_not_fit(weights: Weights) -> None:
    model = native_model("portable", weights)
    adapter = _native.Adapter(model)
    with pytest.raises(ValueError, match="b must be float32"):
        adapter.set("q.0", np.zeros((4, 128), np.float32), np.zeros((128, 4), np.uint16), 1.0)
    kv, step = _native.KvCache(model, 2), (i32([1]), i32([0, 1]), i32([0]), i32([[0]]), i32([0]))
    with pytest.raises(ValueError, match="an entry for each sequence"):
        model.forward(kv, *step, adapters=[adapter, None])
    other = _native.Adapter(native_model("portable", random_weights(Dims())))
    with pytest.raises(ValueError, match="another shape"):
        model.forward(kv, *step, adapters=[other])
    assert BLOCK == 64 and adapter.nbytes == 0


def test_bytes_are_those_of_the_matrices(weights: Weights) -> None:
    model = native_model("portable", weights)
    floats = 8 * sum(sum(sizes(DIMS, kind)) for kind in PROJECTIONS) * DIMS.layers
    assert additions(DIMS, 8).native(model).nbytes == 4 * floats
    assert additions(DIMS, 8, bf16=True).native(model).nbytes == 2 * floats
