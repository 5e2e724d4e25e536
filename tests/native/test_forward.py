"""Model.forward on tiny random models: right against NumPy, and the same bits however the work is cut."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from tailrace import _native
from tests.native.tiny import (
    BLOCK,
    Dims,
    Kv,
    Session,
    Weights,
    i32,
    native_model,
    numpy_logits,
    random_weights,
    run_chunked,
)

VARIANTS = _native.test_variants()
ODD = Dims(layers=1, hidden=192, heads=4, kv_heads=2, head_dim=96, ffn=64, vocab=33)
DIMS = {
    "gqa": Dims(),
    "odd": ODD,
    "mha": Dims(layers=3, hidden=128, heads=2, kv_heads=2, head_dim=64, ffn=192, vocab=300),
}
# How decoders depart from the plain one, alone and together. Windows end inside blocks, at edges and past segments.
DEPARTURES = {
    "bias": Dims(bias=True),
    "head norms": Dims(head_norms=True),
    "out norms": Dims(out_norms=True, embedding_scale=8.0),
    "gelu": Dims(activation="gelu"),
    "softcaps": Dims(attention_softcap=2.0, logit_softcap=3.0, attention_scale=0.4),
    "windows": Dims(layers=3, windows=(64, 0, 70)),
    "last window": Dims(windows=(0, 5)),
    "one key": Dims(windows=(1, 0)),
    "wide window": Dims(windows=(300, 257)),
    "two ropes": Dims(ropes=(1, 0)),
    "all": Dims(
        layers=3, hidden=128, heads=4, kv_heads=2, head_dim=96, activation="gelu", embedding_scale=11.3,
        attention_scale=0.12, attention_softcap=20.0, logit_softcap=5.0, windows=(100, 0, 33), ropes=(1, 0, 1),
        bias=True, head_norms=True, out_norms=True,
    ),
}  # fmt: skip


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["bf16", "int8"])
def kv_type(request: pytest.FixtureRequest) -> Any:
    return request.param


def tokens_of(dims: Dims, count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, dims.vocab, count).tolist()


def similar(a: Any, b: Any) -> float:
    """Root mean square of the difference, relative to that of b."""
    return float(np.sqrt(((a - b) ** 2).mean() / (b**2).mean()))


@pytest.mark.parametrize("name", DIMS)
@pytest.mark.parametrize("fmt", ["int8", "nib4", "bf16"])
def test_logits_follow_the_numpy_model(variant: str, name: str, fmt: str) -> None:
    dims = DIMS[name]
    weights = random_weights(dims, fmt, seed=1)
    tokens = tokens_of(dims, 90)
    logits = run_chunked(native_model(variant, weights), tokens, 90)
    # The rest is rounding of K and V to bf16, which flips some quantized activations.
    assert similar(logits, numpy_logits(weights, tokens)) < 0.03


@pytest.mark.parametrize("name", [*DIMS, "all"])
def test_int8_keys_and_values_follow_the_numpy_model_on_every_variant(name: str) -> None:
    """With int8 weights too, every product is of integers: one set of bits for all variants."""
    dims = {**DIMS, **DEPARTURES}[name]
    weights = random_weights(dims, seed=1)
    tokens = tokens_of(dims, 300)
    found = [run_chunked(native_model(variant, weights), tokens, 110, kv="int8") for variant in VARIANTS]
    assert 0.001 < similar(found[0], numpy_logits(weights, tokens)) < 0.06
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("name", DEPARTURES)
def test_departures_follow_the_numpy_model(variant: str, name: str) -> None:
    dims = DEPARTURES[name]
    weights = random_weights(dims, "bf16", seed=1)
    tokens = tokens_of(dims, 340)
    logits = run_chunked(native_model(variant, weights), tokens, 340)
    assert similar(logits, numpy_logits(weights, tokens)) < 0.02
    assert similar(run_chunked(native_model(variant, random_weights(dims)), tokens, 99), logits) > 0.1  # not a constant


@pytest.mark.parametrize("name", DEPARTURES)
def test_departures_give_the_same_bits_however_the_work_is_cut(variant: str, kv_type: Kv, name: str) -> None:
    dims = DEPARTURES[name]
    weights = random_weights(dims)
    model = native_model(variant, weights)
    tokens = tokens_of(dims, 340)
    whole = run_chunked(model, tokens, 340, kv=kv_type)
    for chunk in (64, 77):
        np.testing.assert_array_equal(run_chunked(model, tokens, chunk, kv=kv_type), whole)
    np.testing.assert_array_equal(
        run_chunked(native_model(variant, weights, threads=3), tokens, 100, kv=kv_type), whole
    )
    np.testing.assert_array_equal(run_chunked(model, tokens, 64, [4, 0, 5, 3, 1, 2], kv=kv_type), whole)
    kv = _native.KvCache(model, 6, kv_type)
    session = Session(model, kv, [2, 5, 1, 0, 4, 3])
    session.feed(tokens[:254])
    alone = np.concatenate([session.feed([token]) for token in tokens[254:324]])
    np.testing.assert_array_equal(alone, whole[254:324])


def test_keys_outside_the_window_do_not_matter(variant: str, kv_type: Kv) -> None:
    """Two layers of a window of w see 2w - 1 keys at most: older tokens may be others."""
    dims = Dims(windows=(40, 100))
    model = native_model(variant, random_weights(dims))
    old, new = tokens_of(dims, 600, seed=1), tokens_of(dims, 600, seed=2)
    tail = tokens_of(dims, 200, seed=3)
    one, other = (run_chunked(model, prefix + tail, 160, kv=kv_type)[-62:] for prefix in (old, new))
    np.testing.assert_array_equal(one, other)
    full = native_model(variant, random_weights(Dims()))
    one, other = (run_chunked(full, prefix + tail, 160, kv=kv_type)[-62:] for prefix in (old, new))
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("fmt", ["int8", "bf16"])
def test_any_chunking_gives_the_same_bits(variant: str, kv_type: Kv, fmt: str) -> None:
    dims = DIMS["gqa"]
    model = native_model(variant, random_weights(dims, fmt))
    tokens = tokens_of(dims, 300)
    whole = run_chunked(model, tokens, 300, kv=kv_type)
    for chunk in (16, 64, 77):
        np.testing.assert_array_equal(run_chunked(model, tokens, chunk, kv=kv_type), whole)
    np.testing.assert_array_equal(run_chunked(model, tokens[:70], 1, kv=kv_type), whole[:70])


def test_threads_give_the_same_bits(variant: str, kv_type: Kv) -> None:
    weights = random_weights(DIMS["mha"])
    tokens = tokens_of(DIMS["mha"], 280)
    alone = run_chunked(native_model(variant, weights, threads=1), tokens, 99, kv=kv_type)
    for threads in (2, 3):
        np.testing.assert_array_equal(
            run_chunked(native_model(variant, weights, threads=threads), tokens, 99, kv=kv_type), alone
        )


def test_block_order_does_not_matter(variant: str, kv_type: Kv) -> None:
    dims = DIMS["odd"]
    model = native_model(variant, random_weights(dims))
    tokens = tokens_of(dims, 200)
    plain = run_chunked(model, tokens, 50, kv=kv_type)
    np.testing.assert_array_equal(run_chunked(model, tokens, 50, [7, 0, 5, 2], kv=kv_type), plain)


def test_a_ragged_batch_equals_each_sequence_alone(variant: str, kv_type: Kv) -> None:
    dims = DIMS["gqa"]
    model = native_model(variant, random_weights(dims), threads=2)
    lengths = [(0, 5), (64, 1), (270, 1), (100, 33), (0, 1), (255, 2), (500, 1)]  # (cached, new)
    sequences = [tokens_of(dims, cached + new, seed) for seed, (cached, new) in enumerate(lengths)]
    alone = [
        run_chunked(model, t, len(t), kv=kv_type)[cached:] for t, (cached, _) in zip(sequences, lengths, strict=True)
    ]
    width = 9
    kv = _native.KvCache(model, width * len(lengths), kv_type)
    tables = i32(np.random.default_rng(0).permutation(width * len(lengths))).reshape(len(lengths), width)
    for row, (t, (cached, _)) in enumerate(zip(sequences, lengths, strict=True)):
        if cached:
            Session(model, kv, tables[row].tolist()).feed(t[:cached])
    fed = [t[cached:] for t, (cached, _) in zip(sequences, lengths, strict=True)]
    starts = np.cumsum([0, *map(len, fed)]).astype(np.int32)
    first = i32([cached for cached, _ in lengths])
    model.forward(kv, i32([t for part in fed for t in part]), starts, first, tables, i32(range(starts[-1])))
    np.testing.assert_array_equal(model.logits(), np.concatenate(alone))


def test_a_shared_prefix_equals_recomputing_it(variant: str, kv_type: Kv) -> None:
    dims = DIMS["gqa"]
    model = native_model(variant, random_weights(dims))
    prefix, tail = tokens_of(dims, 2 * BLOCK), tokens_of(dims, 20, seed=5)
    kv = _native.KvCache(model, 8, kv_type)
    Session(model, kv, [4, 1]).feed(prefix)
    shared = Session(model, kv, [4, 1, 6])
    shared.done = 2 * BLOCK
    np.testing.assert_array_equal(shared.feed(tail), run_chunked(model, prefix + tail, 148, kv=kv_type)[2 * BLOCK :])
    kv.copy_blocks(i32([4, 1]), i32([0, 7]))
    copied = Session(model, kv, [0, 7, 2])
    copied.done = 2 * BLOCK
    np.testing.assert_array_equal(copied.feed(tail), run_chunked(model, prefix + tail, 30, kv=kv_type)[2 * BLOCK :])


def test_only_the_asked_rows_get_logits(variant: str) -> None:
    dims = DIMS["gqa"]
    model = native_model(variant, random_weights(dims))
    tokens = tokens_of(dims, 40)
    whole = run_chunked(model, tokens, 40)
    kv = _native.KvCache(model, 2)

    def feed(rows: list[int]) -> Any:
        model.forward(kv, i32(tokens), i32([0, 15, 40]), i32([0, 15]), i32([[1], [1]]), i32(rows))
        return model.logits()

    for rows in ([39], [0, 14, 15, 38], list(range(40))):
        logits = feed(rows)
        assert logits.shape == (len(rows), dims.vocab)
        np.testing.assert_array_equal(logits, whole[rows])
        assert model.hidden().shape == (len(rows), dims.hidden)
    assert feed([]).shape == (0, dims.vocab)


def test_hidden_is_what_the_head_multiplies(variant: str) -> None:
    weights = random_weights(DIMS["gqa"], "bf16")
    model = native_model(variant, weights)
    logits = run_chunked(model, [1, 2, 3], 3)
    assert similar(model.hidden().astype(np.float64) @ weights.dense["head"].T, logits) < 0.01


def test_stale_blocks_do_not_leak(variant: str, kv_type: Kv) -> None:
    dims = DIMS["gqa"]
    model = native_model(variant, random_weights(dims))
    kv = _native.KvCache(model, 2, kv_type)
    Session(model, kv, [0, 1]).feed(tokens_of(dims, 128, seed=3))
    tokens = tokens_of(dims, 70, seed=4)
    np.testing.assert_array_equal(Session(model, kv, [1, 0]).feed(tokens), run_chunked(model, tokens, 70, kv=kv_type))


def test_counters_add_up_and_reset(variant: str) -> None:
    model = native_model(variant, random_weights(DIMS["gqa"]))
    model.timed = True
    run_chunked(model, [1, 2, 3, 4], 2)
    counters = model.counters()
    assert counters.pop("steps") == 2 and counters.pop("sample") == 0
    wait = counters.pop("wait")
    assert all(seconds > 0 for seconds in counters.values()) and wait <= sum(counters.values())
    assert len(counters) == 11
    assert model.timed and model.counters()["steps"] == 0


def test_a_step_that_is_not_timed_books_nothing(variant: str) -> None:
    model = native_model(variant, random_weights(DIMS["gqa"]))
    run_chunked(model, [1, 2, 3], 3)
    counters = model.counters()
    assert counters.pop("steps") == 1
    assert not any(counters.values())


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_begun_step_is_settled_by_whatever_reads_it(variant: str, threads: int) -> None:
    dims = DIMS["gqa"]
    model = native_model(variant, random_weights(dims), threads)
    tokens = tokens_of(dims, 70)
    expected = run_chunked(model, tokens, 70)
    read = [model.logits, lambda: model.settle() or model.logits(), lambda: model.counters() and model.logits()]
    for reader in read:
        batch = [i32(tokens), i32([0, 70]), i32([0]), i32([[0, 1]]), i32(range(70))]
        model.begin(_native.KvCache(model, 2), *batch)
        for array in batch:
            array[...] = -7  # the step has its own copy
        np.testing.assert_array_equal(reader(), expected)
    assert len(model.hidden()) == 70


def test_a_step_begun_and_left_is_over_before_its_model_is(variant: str) -> None:
    dims = DIMS["gqa"]
    weights = random_weights(dims)
    tokens = tokens_of(dims, 70)
    model = native_model(variant, weights, 2)
    expected = run_chunked(model, tokens, 70)
    for _ in range(3):
        left = native_model(variant, weights, 2)
        left.begin(_native.KvCache(left, 2), i32(tokens), i32([0, 70]), i32([0]), i32([[0, 1]]), i32(range(70)))
        del left
    model.begin(_native.KvCache(model, 2), i32(tokens), i32([0, 70]), i32([0]), i32([[0, 1]]), i32([69]))
    np.testing.assert_array_equal(run_chunked(model, tokens, 70), expected)


# ---- bad calls raise and name the argument ----


def good_batch() -> dict[str, Any]:
    return {
        "token_ids": i32([1, 2, 3]),
        "row_starts": i32([0, 2, 3]),
        "first_positions": i32([0, 64]),
        "block_tables": i32([[0, -1], [1, 2]]),
        "logit_rows": i32([2]),
    }


BAD = [
    ("token_ids", i32([1, 2, 77]), "token_ids"),
    ("token_ids", i32([1, -1, 3]), "token_ids"),
    ("token_ids", i32([]), "row_starts|token_ids"),
    ("token_ids", np.array([1, 2, 3], np.int64), "token_ids must be int32"),
    ("token_ids", i32([[1, 2, 3]]), "token_ids must have shape"),
    ("token_ids", i32(range(6))[::2], "token_ids must be C-contiguous"),
    ("row_starts", i32([0, 3, 3]), "row_starts"),
    ("row_starts", i32([0, 4, 3]), "row_starts"),
    ("row_starts", i32([0, -5, 3]), "row_starts"),
    ("row_starts", i32([1, 2, 3]), "row_starts"),
    ("row_starts", i32([0, 3]), "row_starts"),
    ("first_positions", i32([0, -1]), "first_positions"),
    ("first_positions", i32([0, 1200]), "first_positions"),
    ("first_positions", i32([0, 2**31 - 1]), "first_positions"),
    ("first_positions", i32([0, 128]), "block_tables: sequence 1 needs 3 blocks"),
    ("block_tables", i32([[0, 0], [1, 3]]), "block_tables: sequence 1 names block 3"),
    ("block_tables", i32([[-1, 0], [1, 2]]), "block_tables: sequence 0 names block -1"),
    ("block_tables", i32([[0, 1]]), "block_tables"),
    ("logit_rows", i32([3]), "logit_rows"),
    ("logit_rows", i32([1, 1]), "logit_rows"),
    ("logit_rows", i32([-1]), "logit_rows"),
]


@pytest.fixture(scope="module")
def small() -> tuple[_native.Model, _native.KvCache]:
    model = native_model("portable", random_weights(DIMS["gqa"]))
    return model, _native.KvCache(model, 3)


@pytest.mark.parametrize(("name", "value", "message"), BAD)
def test_a_bad_batch_is_refused(small: Any, name: str, value: Any, message: str) -> None:
    model, kv = small
    with pytest.raises(ValueError, match=message):
        model.forward(kv, **{**good_batch(), name: value})
    model.forward(kv, **good_batch())
    assert model.logits().shape == (1, 77)


def test_a_cache_of_another_model_is_refused(small: Any) -> None:
    other = native_model("portable", random_weights(DIMS["odd"]))
    with pytest.raises(ValueError, match="kv was made for a model of another shape"):
        small[0].forward(_native.KvCache(other, 3), **good_batch())


def test_copy_blocks_checks_its_arguments(small: Any) -> None:
    for src, dst in (([0], [3]), ([-1], [0]), ([0, 1], [2])):
        with pytest.raises(ValueError, match=r"src|dst"):
            small[1].copy_blocks(i32(src), i32(dst))


def test_an_unfinished_model_says_what_is_missing() -> None:
    weights = random_weights(Dims(layers=1))
    model = _native.Model("portable", weights.dims.spec(), _native.Team(1))
    model.set_norm("final", weights.norms["final"])
    with pytest.raises(
        ValueError, match=r"missing: embedding, rope, attn\.0, ffn\.0, qkv\.0, o\.0, gate_up\.0, down\.0, head"
    ):
        model.finish()
    with pytest.raises(ValueError, match="not finished"):
        model.forward(_native.KvCache(model, 3), **good_batch())
    assert model.logits().shape == (0, 77)


def test_a_rope_table_that_a_layer_needs_is_missed() -> None:
    weights = random_weights(Dims(ropes=(0, 2)))
    with pytest.raises(ValueError, match="missing: rope table 2"):
        native_model("portable", weights)


def bad_setters(model: _native.Model, w: Weights) -> list[tuple[Any, str]]:
    packed = _native.pack_int8("portable", w.w8["head"], w.wide["head"])
    scale = w.scale["head"]

    def head(
        *, n: int = 77, k: int = 64, fmt: str = "int8", bytes_: Any = packed, s: Any = scale, wide: Any = None
    ) -> Any:
        return lambda: model.set_linear("head", fmt, n, k, bytes_, s, wide)

    return [
        (head(n=78), "scale must have shape|n, k of 'head'"),
        (head(k=128), "n, k of 'head' must be 77, 64"),
        (head(fmt="int4"), "fmt must be"),
        (head(bytes_=packed[:-1]), "packed of 'head' has"),
        (head(s=None), "scale is needed"),
        (head(wide=i32([1])), "wide must list a multiple of 64"),
        (head(wide=i32([0] * 64)), "wide must ascend"),
        (lambda: model.set_linear("qkv.9", "int8", 1, 1, packed, scale, None), "names a layer|scale"),
        (lambda: model.set_norm("attn.x", w.norms["final"]), "names a layer"),
        (lambda: model.set_norm("nope", w.norms["final"]), "is not a norm"),
        (lambda: model.set_norm("final", w.norms["final"][:-1]), "must have 64 values"),
        (lambda: model.set_rope(w.cos[:-1], w.sin[:-1]), "cos must have shape"),
        (lambda: model.set_rope(w.cos, w.sin[:, :-1]), "sin must have shape"),
        (lambda: model.set_rope(w.cos, w.sin, 8), "table must be between 0 and 7"),
        (lambda: model.set_norm("q.0", w.norms["final"]), "must have 32 values"),
        (lambda: model.set_bias("qkv.0", w.norms["final"]), "must have 160 values"),
        (lambda: model.set_bias("o.0", w.norms["final"]), "takes a bias: qkv"),
        (lambda: model.set_embedding(w.embedding, "q8_0"), "rows must have shape"),
        (lambda: model.set_embedding(w.embedding, "f8"), "fmt must be"),
    ]


def test_bad_parts_are_refused() -> None:
    weights = random_weights(Dims(layers=1))
    model = _native.Model("portable", weights.dims.spec(), _native.Team(1))
    for call, message in bad_setters(model, weights):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden", 65), ("head_dim", 48), ("heads", 0), ("kv_heads", 2), ("vocab", 0), ("layers", -1), ("ffn", 100),
        ("windows", [1]), ("windows", [0, -1]), ("ropes", [0, 8]), ("ropes", [0]), ("activation", "relu"),
        ("attention_softcap", -1.0), ("logit_softcap", -1.0), ("embedding_scale", 0.0), ("windows", 5),
    ],
)  # fmt: skip
def test_bad_specs_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=key):
        _native.Model("portable", {**Dims().spec(), key: value}, _native.Team(1))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot run on this CPU"):
        _native.Model("sse9", Dims().spec(), _native.Team(1))
    with pytest.raises(ValueError, match="spec has no layers"):
        _native.Model("portable", {}, _native.Team(1))
    with pytest.raises(ValueError, match="source must be"):
        _native.preferred_format("portable", "q5")
    with pytest.raises(ValueError, match="num_blocks"):
        _native.KvCache(native_model("portable", random_weights(Dims(layers=1))), 0)


def test_a_large_pool_costs_nothing_until_used(small: Any) -> None:
    kv = _native.KvCache(small[0], 1_000_000)
    assert kv.num_blocks == 1_000_000
    assert kv.block_bytes == _native.KvCache.bytes_per_block(DIMS["gqa"].spec()) == 2 * 2 * 64 * 32 * 2


def test_int8_blocks_are_half_as_large_and_a_step_for_each_token_and_head(small: Any) -> None:
    kv = _native.KvCache(small[0], 3, "int8")
    assert (kv.kv, _native.KvCache(small[0], 3).kv) == ("int8", "bf16")
    assert kv.block_bytes == _native.KvCache.bytes_per_block(DIMS["gqa"].spec(), "int8") == 2 * 2 * 64 * (32 + 4)
    with pytest.raises(ValueError, match="kv must be bf16 or int8, not 'fp8'"):
        _native.KvCache(small[0], 3, "fp8")  # type: ignore[arg-type]


def test_other_python_threads_run_while_a_layer_is_set() -> None:
    dims = Dims(layers=1, hidden=1024, ffn=2048)
    model = _native.Model("portable", dims.spec(), _native.Team(1))
    n, k = dims.shapes()["gate_up.0"]
    wide, scale = i32([]), np.ones(n, np.float32)
    packed = np.zeros(n * k, np.uint8)
    turns, over = 0, False

    def other() -> None:
        nonlocal turns
        while not over:
            turns += 1
            time.sleep(0)  # lets the main thread go on

    patience = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # nobody is interrupted: the other thread runs only where this one lets it
    thread = threading.Thread(target=other)
    try:
        thread.start()
        end, before = time.monotonic() + 120, turns
        while turns == before and time.monotonic() < end:  # it may be there while another program has its processor
            before = turns
            model.set_linear("gate_up.0", "int8", n, k, packed, scale, wide)
        assert turns > before
    finally:
        over = True
        sys.setswitchinterval(patience)
        thread.join()
