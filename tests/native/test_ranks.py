"""Tensor parallel over ranks: the same bits as one rank, whatever divides or does not; every part with somebody."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import _native
from tests.native.test_forward import DEPARTURES, DIMS, tokens_of
from tests.native.tiny import Dims, Kv, Session, Weights, i32, native_model, random_weights, run_chunked

testing: Any = _native.testing  # type: ignore[attr-defined]
VARIANTS = _native.variants()  # kernels do not know of ranks; how weights are packed matters, for all of them below
# Heads that divide among two and three ranks, that don't, and fewer of them than ranks.
HEADS = {
    "3 over 1": Dims(),
    "4 over 1": Dims(heads=4, hidden=128, ffn=192, vocab=300),
    "9 over 3": Dims(heads=9, kv_heads=3, hidden=192, ffn=320, vocab=130),
    "5 over 5": Dims(heads=5, kv_heads=5, bias=True),
    "2 over 2": DIMS["mha"],
    "all departures": DEPARTURES["all"],
}


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("kv", ["bf16", "int8"])
@pytest.mark.parametrize("name", HEADS)
def test_two_ranks_of_one_thread_equal_one_of_two(variant: str, name: str, kv: Kv) -> None:
    weights = random_weights(HEADS[name])
    tokens = tokens_of(HEADS[name], 290)
    one = run_chunked(native_model(variant, weights, 2), tokens, 110, kv=kv)
    for ranks in ([1, 1], [1, 1, 1]):
        found = run_chunked(native_model(variant, weights, ranks), tokens, 110, kv=kv)
        np.testing.assert_array_equal(found, one)


@pytest.mark.parametrize("ranks", [[2, 1], [1, 3], [1] * 7])
def test_uneven_ranks_and_more_of_them_than_heads(variant: str, ranks: list[int]) -> None:
    """Seven ranks over a matrix of two tiles and two heads: some have nothing."""
    for dims in (DIMS["odd"], Dims(bias=True, head_norms=True, out_norms=True)):
        weights = random_weights(dims)
        tokens = tokens_of(dims, 270)
        one = run_chunked(native_model(variant, weights), tokens, 90, kv="int8")
        found = run_chunked(native_model(variant, weights, ranks), tokens, 90, kv="int8")
        np.testing.assert_array_equal(found, one)


@pytest.mark.parametrize("variant", _native.test_variants())
@pytest.mark.parametrize("fmt", ["int8", "nib4", "bf16"])
def test_packed_weights_of_every_format_are_cut_where_rows_end(variant: str, fmt: str) -> None:
    dims = HEADS["9 over 3"]
    weights = random_weights(dims, fmt)
    tokens = tokens_of(dims, 70)
    one = run_chunked(native_model(variant, weights), tokens, 70)
    np.testing.assert_array_equal(run_chunked(native_model(variant, weights, [1, 1, 1]), tokens, 70), one)


@pytest.mark.parametrize("kv_type", ["bf16", "int8"])
def test_a_batch_over_ranks(variant: str, kv_type: Kv) -> None:
    """Prefill beside decode, long contexts that are split by segments, logits of some rows, copied blocks."""
    dims = Dims(layers=2, heads=6, kv_heads=2, windows=(0, 100))
    weights = random_weights(dims)
    found = [mixed_step(native_model(variant, weights, ranks), dims, kv_type) for ranks in (2, [1, 1], [1, 2, 1])]
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


def mixed_step(model: _native.Model, dims: Dims, kv_type: Kv) -> Any:
    kv = _native.KvCache(model, 24, kv_type)
    long, short = tokens_of(dims, 600, 1), tokens_of(dims, 100, 2)
    Session(model, kv, list(range(3, 13))).feed(long[:599])
    Session(model, kv, [0, 1]).feed(short[:70])
    kv.copy_blocks(i32([0, 1]), i32([20, 21]))
    fed = [long[599:], short[70:], short[70:72], tokens_of(dims, 5, 3)]
    tables = np.zeros((4, 10), np.int32)
    tables[0] = range(3, 13)
    tables[1, :2], tables[2, :2], tables[3, 0] = (20, 21), (0, 1), 23
    starts = np.cumsum([0, *map(len, fed)]).astype(np.int32)
    rows = i32([0, 5, 30, 31, 32, 37])
    model.forward(kv, i32([t for part in fed for t in part]), starts, i32([599, 70, 70, 0]), tables, rows)
    return model.logits()


def test_shared_heads_take_memory_with_each_rank() -> None:
    dims = Dims(heads=4)
    alone = _native.KvCache.bytes_per_block(dims.spec(), "int8")
    for ranks, times in (([1, 1], 2), ([1, 1, 1], 3), ([1] * 6, 4)):
        model = native_model("portable", random_weights(dims), ranks)
        assert _native.KvCache(model, 3, "int8").block_bytes == times * alone
        assert _native.KvCache.bytes_per_block(dims.spec(), "int8", ranks) == times * alone
    apart = Dims(heads=4, kv_heads=4)
    assert _native.KvCache.bytes_per_block(apart.spec(), "bf16", [1, 1]) == _native.KvCache.bytes_per_block(
        apart.spec()
    )


def test_a_cache_of_other_ranks_is_refused() -> None:
    weights = random_weights(Dims())
    one, two = native_model("portable", weights, 2), native_model("portable", weights, [1, 1])
    with pytest.raises(ValueError, match="kv was made for a team with other ranks"):
        Session(one, _native.KvCache(two, 2), [0]).feed([1, 2])


def test_bad_parts_are_refused_by_name() -> None:
    weights: Weights = random_weights(Dims())
    model = _native.Model("portable", weights.dims.spec(), _native.Team([1, 1]))
    with pytest.raises(ValueError, match=r"missing: .*qkv\.0, o\.0"):
        model.finish()
    with pytest.raises(ValueError, match="names a layer the model does not have"):
        model.set_linear("qkv.7", "int8", 1, 1, np.zeros(1, np.uint8), None, None)


# ---- what each rank has ----

RANKS = st.lists(st.integers(1, 9), min_size=1, max_size=9)


@given(st.integers(0, 5000), RANKS)
def test_a_cut_leaves_nothing_out_and_follows_the_threads(units: int, ranks: list[int]) -> None:
    at = 0
    for (first, count), threads in zip(testing.cuts(units, ranks), ranks, strict=True):
        assert first == at
        at += count
        assert abs(count - units * threads / sum(ranks)) < 1
    assert at == units


@given(st.integers(1, 16), st.integers(1, 8), RANKS)
def test_every_query_head_has_one_rank_and_its_kv_head_there(kv_heads: int, group: int, ranks: list[int]) -> None:
    heads, seen = kv_heads * group, []
    for first, count, kv_first, kv_count in testing.head_shares(heads, kv_heads, ranks):
        seen += range(first, first + count)
        assert {head // group for head in range(first, first + count)} == set(range(kv_first, kv_first + kv_count))
        assert kv_count == 0 or count % kv_count == 0
    assert seen == list(range(heads))


def test_heads_that_do_not_divide() -> None:
    assert testing.head_shares(9, 3, [1, 1]) == [[0, 6, 0, 2], [6, 3, 2, 1]]
    assert testing.head_shares(4, 1, [1, 1]) == [[0, 2, 0, 1], [2, 2, 0, 1]]
    assert testing.head_shares(6, 2, [1, 1, 1]) == [[0, 2, 0, 1], [2, 1, 0, 1], [3, 3, 1, 1]]


# ---- the team ----


@pytest.mark.parametrize("ranks", [[1], [3], [1, 1], [2, 1, 3]])
def test_tasks_of_a_rank_are_its_own(ranks: list[int]) -> None:
    team = _native.Team(ranks)
    assert (team.threads, team.ranks) == (sum(ranks), ranks)
    for first in (0, 1, 50):
        counts = [first + 3 * rank for rank in range(len(ranks))]
        expected = [20 * count * (count - 1) // 2 for count in counts]
        assert testing.rank_sums(team, counts, 20) == expected
    assert testing.team_sum(team, 100, 5) == 5 * 4950


def test_threads_stay_on_the_cpus_of_their_rank() -> None:
    """So does the caller, but only meanwhile."""
    allowed = sorted(os.sched_getaffinity(0))
    before = tasks()
    team = _native.Team([1, 1], [allowed[:1], allowed[-1:]])
    (worker,) = tasks() - before
    assert testing.rank_sums(team, [9, 9], 3) == [108, 108]  # it was there
    assert cpus_of(worker) == str(allowed[-1])
    assert sorted(os.sched_getaffinity(0)) == allowed


def test_cpus_that_are_not_there_cost_nothing_but_their_place() -> None:
    team = _native.Team([1, 1], [[100_000], [-4, 1023]])
    assert testing.rank_sums(team, [5, 6], 2) == [20, 30]


@pytest.mark.parametrize(
    ("ranks", "cpus", "message"),
    [
        ([], [], "ranks must be between"), ([1] * 65, [], "ranks must be between"), ([1, 0], [], "threads must be"),
        ([1024, 1], [], "threads must be"), ([1, 1], [[0]], "cpus must have a list for each rank"),
    ],
)  # fmt: skip
def test_silly_ranks_are_refused(ranks: list[int], cpus: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _native.Team(ranks, cpus)


def test_a_forked_child_gets_its_own_workers() -> None:
    team = _native.Team([1, 1])
    assert testing.rank_sums(team, [5, 5], 1) == [10, 10]
    child = os.fork()
    if child == 0:
        os._exit(0 if testing.rank_sums(team, [5, 5], 2) == [20, 20] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def tasks() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def cpus_of(task: str) -> str:
    lines = Path(f"/proc/self/task/{task}/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith("Cpus_allowed_list"))
