"""The native sampler against a plain NumPy reference."""

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pytest

from tailrace import _native

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Row:
    """What one row asks for; the defaults sample from the plain softmax."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    key: int = 0
    position: int = 0
    logprobs: int = -1
    penalties: tuple[float, float, float] = (0.0, 0.0, 1.0)
    history: dict[int, int] = field(default_factory=dict)
    bias: dict[int, float] = field(default_factory=dict)
    source: int = 0


def columns(rows: list[Row]) -> dict[str, np.ndarray]:
    def column(name: str, dtype: type) -> np.ndarray:
        return np.array([getattr(r, name) for r in rows], dtype)

    def starts(name: str) -> np.ndarray:
        return np.cumsum([0] + [len(getattr(r, name)) for r in rows]).astype(np.int32)

    return {
        "rows": column("source", np.int32),
        "temperature": column("temperature", np.float32),
        "top_k": column("top_k", np.int32),
        "top_p": column("top_p", np.float32),
        "min_p": column("min_p", np.float32),
        "typical_p": column("typical_p", np.float32),
        "key": column("key", np.uint64),
        "position": column("position", np.int32),
        "logprobs": column("logprobs", np.int32),
        "penalties": column("penalties", np.float32).reshape(len(rows), 3),
        "history_starts": starts("history"),
        "history_ids": np.array([i for r in rows for i in r.history], np.int32),
        "history_counts": np.array([c for r in rows for c in r.history.values()], np.int32),
        "bias_starts": starts("bias"),
        "bias_ids": np.array([i for r in rows for i in r.bias], np.int32),
        "bias_values": np.array([v for r in rows for v in r.bias.values()], np.float32),
    }


TEAM = _native.Team(1)


def sample(logits: F32, rows: list[Row], mask: np.ndarray | None = None, team: "_native.Team" = TEAM):
    return _native.testing.sample_logits(team, logits, **columns(rows), mask=mask)


def tokens(logits: F32, rows: list[Row], mask: np.ndarray | None = None, team: "_native.Team" = TEAM) -> list[int]:
    return sample(logits, rows, mask, team)[0].tolist()


def draws(logits: F32, row: Row, count: int) -> np.ndarray:
    """Tokens for `count` keys of one row of logits."""
    per_row = ("rows", "temperature", "top_k", "top_p", "min_p", "typical_p", "position", "logprobs", "penalties")
    args = columns([row])
    for name in per_row:
        args[name] = np.repeat(args[name], count, axis=0)
    args["key"] = np.arange(count, dtype=np.uint64)
    for name in ("history", "bias"):
        starts = np.arange(count + 1) * args[f"{name}_starts"][1]
        args[f"{name}_starts"] = starts.astype(np.int32)
    for name in ("history_ids", "history_counts", "bias_ids", "bias_values"):
        args[name] = np.tile(args[name], count)
    return _native.testing.sample_logits(TEAM, logits, **args)[0]


def mask_of(allowed: np.ndarray) -> np.ndarray:
    vocab = len(allowed)
    bits = np.zeros((vocab + 31) // 32 * 32, np.uint8)
    bits[:vocab] = allowed
    return np.packbits(bits, bitorder="little").view(np.uint32).reshape(1, -1)


# ---- the reference ----


def edited(logits: F32, row: Row, allowed: np.ndarray | None = None) -> np.ndarray:
    x = logits.astype(np.float64)
    for token, value in row.bias.items():
        x[token] += value
    presence, frequency, repetition = row.penalties
    for token, count in row.history.items():
        x[token] = x[token] / repetition if x[token] > 0 else x[token] * repetition
        x[token] -= frequency * count + presence * (count > 0)
    if allowed is not None:
        x[~allowed] = -np.inf
    return x


def probabilities(x: np.ndarray, row: Row) -> np.ndarray:
    """The distribution after all filters."""
    with np.errstate(invalid="ignore"):
        z = (x - x.max()) / row.temperature
    order = np.lexsort((np.arange(len(x)), -x))
    keep = np.zeros(len(x), bool)
    keep[order[: row.top_k or len(x)]] = True
    p = np.where(keep, np.exp(z), 0)
    p /= p.sum()
    if row.top_p < 1:
        before = np.cumsum(p[order]) - p[order]
        keep &= np.isin(np.arange(len(x)), order[before < row.top_p])
    keep &= np.exp(z) >= row.min_p
    p = np.where(keep, p, 0)
    p /= p.sum()
    return p if row.typical_p == 1 else typical(p, row.typical_p)


def typical(p: np.ndarray, share: float) -> np.ndarray:
    """By the paper's words: order by how far -log p is from the entropy, and keep the first that reach the share."""
    with np.errstate(divide="ignore"):
        information = -np.log(p)
    entropy = (p[p > 0] * information[p > 0]).sum()
    order = np.argsort(np.abs(information - entropy), kind="stable")
    before = np.cumsum(p[order]) - p[order]
    kept = np.zeros_like(p)
    kept[order[before < share]] = p[order[before < share]]
    return kept / kept.sum()


def reachable(logits: F32, row: Row, count: int) -> set[int]:
    return set(draws(logits, row, count).tolist())


def random_logits(vocab: int, seed: int, spread: float = 1.0) -> F32:
    return (np.random.default_rng(seed).standard_normal((1, vocab)) * spread).astype(np.float32)


def check_distribution(logits: F32, row: Row, count: int = 10000) -> None:
    """Chi-square of the drawn tokens against the reference, at about 5 standard deviations."""
    expected = probabilities(edited(logits[0], row), row) * count
    seen = np.bincount(draws(logits, row, count), minlength=logits.shape[1])
    assert not seen[expected == 0].any()
    common = expected >= 5
    rest = ~common & (expected > 0)
    e = np.append(expected[common], expected[rest].sum())
    s = np.append(seen[common], seen[rest].sum())
    e, s = e[e > 0], s[e > 0]
    degrees = len(e) - 1
    assert ((s - e) ** 2 / e).sum() < degrees + 5 * np.sqrt(2 * degrees) + 10


# ---- distribution and filters ----


@pytest.mark.parametrize(
    "row",
    [
        Row(),
        Row(temperature=0.5),
        Row(temperature=3.0),
        Row(top_k=7),
        Row(top_p=0.6),
        Row(min_p=0.2),
        Row(typical_p=0.3),
        Row(typical_p=0.9, temperature=0.7),
        Row(top_k=20, top_p=0.9, min_p=0.02, typical_p=0.6),
        Row(top_p=0.8, min_p=0.1, typical_p=0.5, bias={3: -np.inf}),
        Row(top_k=20, top_p=0.8, min_p=0.05, temperature=1.3),
        Row(bias={3: 2.0, 5: -np.inf}, penalties=(0.5, 0.3, 1.4), history={1: 2, 2: 0, 7: 1}),
    ],
    ids=str,
)
@pytest.mark.parametrize("vocab", [50, 131])
def test_drawn_tokens_follow_the_filtered_softmax(row: Row, vocab: int) -> None:
    check_distribution(random_logits(vocab, vocab, 1.5), row)


def test_a_large_vocabulary_follows_the_softmax() -> None:
    logits = random_logits(3000, 1, 2.5)
    check_distribution(logits, Row())
    check_distribution(logits, Row(top_p=0.7))
    check_distribution(logits, Row(top_k=300))
    check_distribution(logits, Row(typical_p=0.4))


@pytest.mark.parametrize("seed", range(6))
def test_typical_p_keeps_exactly_the_typical_tokens(seed: int) -> None:
    logits = random_logits(90, seed, 1.0)
    row = Row(typical_p=0.35, top_k=40 * (seed % 2))
    kept = set(np.flatnonzero(probabilities(edited(logits[0], row), row)).tolist())
    assert 1 < len(kept) < 40
    assert reachable(logits, row, 4000) == kept


def test_typical_p_may_leave_out_the_best_token() -> None:
    """p = 1/4 and 75 of 1/100: the entropy, 3.8, is closer to -log 1/100 = 4.6 than to -log 1/4 = 1.4."""
    logits = np.log(np.array([[0.25] + [0.01] * 75], np.float32))
    assert reachable(logits, Row(typical_p=0.7), 3000) == set(range(1, 71))
    assert reachable(logits, Row(typical_p=1e-30), 50) == {1}
    assert tokens(logits, [Row(typical_p=0.7, temperature=0)]) == [0]


def test_typical_p_with_one_token_left() -> None:
    logits = np.full((1, 70), -np.inf, np.float32)
    logits[0, 66] = -3
    assert tokens(logits, [Row(typical_p=0.2), Row(typical_p=0.2, top_k=4)]) == [66, 66]
    assert tokens(np.full((1, 70), -np.inf, np.float32), [Row(typical_p=0.2)]) == [-1]


def test_positions_are_as_independent_as_keys() -> None:
    logits = random_logits(40, 2)
    count = 10000
    expected = probabilities(edited(logits[0], Row()), Row()) * count
    seen = np.bincount(sample(logits, [Row(key=9, position=p) for p in range(count)])[0], minlength=40)
    assert ((seen - expected) ** 2 / expected).sum() < 39 + 5 * np.sqrt(78)
    pairs = np.array(sample(logits, [Row(key=k // 2, position=k % 2) for k in range(count)])[0]).reshape(-1, 2)
    equal = (pairs[:, 0] == pairs[:, 1]).mean()
    assert equal == pytest.approx(((expected / count) ** 2).sum(), abs=0.02)


@pytest.mark.parametrize("vocab", [37, 1000, 4096])
@pytest.mark.parametrize("k", [1, 2, 5, 33])
def test_top_k_is_exactly_the_k_best(vocab: int, k: int) -> None:
    logits = random_logits(vocab, vocab + k)
    kept = reachable(logits, Row(top_k=k, temperature=1e6), 40 * k)
    assert kept == set(np.argsort(-logits[0])[:k].tolist())


def test_top_k_ties_keep_the_lowest_ids() -> None:
    logits = np.zeros((1, 300), np.float32)
    logits[0, [7, 250]] = 1
    assert reachable(logits, Row(top_k=5, temperature=1e6), 400) == {7, 250, 0, 1, 2}


def test_top_k_beyond_the_chunks_and_the_vocabulary() -> None:
    logits = random_logits(100, 5)
    best = np.argsort(-logits[0], kind="stable")
    assert reachable(logits, Row(top_k=40, temperature=1e6), 2000) == set(best[:40].tolist())
    plain = draws(logits, Row(), 200).tolist()
    assert draws(logits, Row(top_k=100), 200).tolist() == plain
    assert draws(logits, Row(top_k=1000), 200).tolist() == plain


@pytest.mark.parametrize("p", [0.05, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("spread", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("top_k", [0, 60])
def test_top_p_is_the_smallest_set_that_reaches_it(p: float, spread: float, top_k: int) -> None:
    """No token outside is ever drawn, and every kept one that is not rare is."""
    logits = random_logits(90, int(10 * p) + top_k, spread)
    row = Row(top_p=p, top_k=top_k)
    expected = probabilities(logits[0].astype(np.float64), row)
    seen = np.bincount(draws(logits, row, 10000), minlength=90)
    assert not seen[expected == 0].any()
    assert seen[expected > 2e-3].all()


@pytest.mark.parametrize("vocab", [1000, 5003, 20000])
def test_top_p_is_exact_on_a_large_flat_vocabulary(vocab: int) -> None:
    """Nearly equal tokens: each of the kept ones is drawn, none beside them."""
    rng = np.random.default_rng(vocab)
    logits = (rng.permutation(vocab) * 1e-4).astype(np.float32)[None]
    tied = np.round(rng.random((1, vocab)) * 3).astype(np.float32) * np.float32(0.25)
    for x in (logits, tied):
        best = np.lexsort((np.arange(vocab), -x[0]))
        mass = np.cumsum(np.exp(x[0, best].astype(np.float64)))
        p = (mass[39] + mass[40]) / 2 / mass[-1]
        assert reachable(x, Row(top_p=float(p)), 800) == set(best[:41].tolist())


def test_top_p_ties_keep_the_lowest_ids() -> None:
    flat = np.zeros((1, 1000), np.float32)
    assert reachable(flat, Row(top_p=0.005), 200) == {0, 1, 2, 3, 4}
    logits = np.full((1, 200), -50, np.float32)
    logits[0, [40, 90, 130, 170]] = 2
    assert reachable(logits, Row(top_p=0.5), 100) == {40, 90}
    assert reachable(logits, Row(top_p=0.51), 200) == {40, 90, 130}


def test_a_tiny_top_p_is_greedy() -> None:
    logits = random_logits(5000, 3)
    assert reachable(logits, Row(top_p=1e-6), 50) == {int(logits[0].argmax())}
    assert reachable(logits, Row(top_p=1e-6, top_k=40), 50) == {int(logits[0].argmax())}


def test_a_top_p_just_below_one_keeps_nearly_everything() -> None:
    logits = random_logits(2000, 4, 0.1)
    row = Row(top_p=float(np.nextafter(np.float32(1), np.float32(0))))
    same = draws(logits, row, 300) == draws(logits, Row(), 300)
    assert np.mean(same) > 0.99


def test_top_p_counts_the_mass_that_top_k_left() -> None:
    logits = np.log(np.array([[0.4, 0.3, 0.2, 0.1]], np.float32))
    assert reachable(logits, Row(top_k=2, top_p=0.5), 200) == {0}
    assert reachable(logits, Row(top_p=0.5), 200) == {0, 1}


def test_min_p_is_relative_to_the_best() -> None:
    logits = np.log(np.array([[0.5, 0.26, 0.14, 0.1]], np.float32))
    assert reachable(logits, Row(min_p=0.25), 500) == {0, 1, 2}
    assert reachable(logits, Row(min_p=1.0), 100) == {0}
    assert reachable(logits, Row(min_p=0.25, top_k=3, top_p=0.9), 500) == {0, 1, 2}


def test_filters_do_not_change_the_noise() -> None:
    """A token that wins unfiltered and passes the filter wins filtered: the noise belongs to the token."""
    logits = random_logits(3000, 6, 2.0)
    for row in [Row(top_k=50), Row(top_p=0.8), Row(min_p=0.1)]:
        allowed = probabilities(logits[0].astype(np.float64), row) > 0
        plain, filtered = draws(logits, Row(), 500), draws(logits, row, 500)
        assert (plain == filtered)[allowed[plain]].all()


# ---- greedy, temperature ----


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 1000])
def test_greedy_takes_the_largest_and_the_lowest_id_of_equals(vocab: int) -> None:
    logits = random_logits(vocab, vocab)
    assert tokens(logits, [Row(temperature=0)]) == [int(logits[0].argmax())]
    logits[0, [vocab // 3, vocab - 1]] = 9
    assert tokens(logits, [Row(temperature=0)]) == [vocab // 3]


def test_greedy_sees_minus_zero_and_zero_as_equal() -> None:
    logits = np.array([[-1, -0.0, 0.0, -2]], np.float32)
    assert tokens(logits, [Row(temperature=0)]) == [1]
    assert reachable(logits, Row(top_k=1), 10) == {1}


def test_a_tiny_temperature_is_greedy_and_a_huge_one_uniform() -> None:
    logits = random_logits(64, 8)
    for tiny in (1e-6, 1e-30, 1e-45):
        assert reachable(logits, Row(temperature=tiny), 50) == {int(logits[0].argmax())}
    seen = np.bincount(draws(logits, Row(temperature=3e38), 6400), minlength=64)
    assert ((seen - 100) ** 2 / 100).sum() < 63 + 5 * np.sqrt(126)


def test_huge_logits() -> None:
    logits = np.array([[3e38, -3e38, 2.9e38, 3e38]], np.float32)
    assert tokens(logits, [Row(temperature=0)]) == [0]
    assert reachable(logits, Row(), 50) == {0, 3}
    assert reachable(logits, Row(top_p=0.9), 50) == {0, 3}


# ---- bias, penalties, masks ----


def test_bias_is_added_first_and_minus_infinity_forbids() -> None:
    logits = np.array([[1.0, 2.0, 3.0, 0.5]], np.float32)
    assert tokens(logits, [Row(temperature=0, bias={3: 5.0})]) == [3]
    assert tokens(logits, [Row(temperature=0, bias={2: -np.inf})]) == [1]
    row = Row(temperature=0, bias={0: 5.0}, penalties=(0, 0, 3.0), history={0: 0})  # (1 + 5) / 3 = 2 < 3
    assert tokens(logits, [row]) == [2]


def test_penalties_follow_their_definitions() -> None:
    logits = np.array([[2.0, 1.9, -1.0, 0.0]], np.float32)
    greedy = Row(temperature=0)
    assert tokens(logits, [replace(greedy, penalties=(0.2, 0, 1), history={0: 3})]) == [1]
    assert tokens(logits, [replace(greedy, penalties=(0.2, 0, 1), history={0: 0})]) == [0], "prompt only: no presence"
    assert tokens(logits, [replace(greedy, penalties=(0, 0.04, 1), history={0: 3})]) == [1]
    assert tokens(logits, [replace(greedy, penalties=(0, 0.04, 1), history={0: 2})]) == [0]
    assert tokens(logits, [replace(greedy, penalties=(0, 0, 1.1), history={0: 0})]) == [1], "repetition: prompt too"
    negative = np.array([[-1.0, -1.05]], np.float32)
    assert tokens(negative, [replace(greedy, penalties=(0, 0, 1.1), history={0: 1})]) == [1]


def test_random_edits_match_the_reference_greedily() -> None:
    rng = np.random.default_rng(0)
    for case in range(40):
        vocab = int(rng.integers(2, 400))
        logits = random_logits(vocab, case)
        ids = rng.permutation(vocab)[: vocab // 2].tolist()
        row = Row(
            temperature=0,
            penalties=tuple(rng.uniform([-1, -1, 0.5], [1, 1, 2]).tolist()),
            history={i: int(rng.integers(0, 4)) for i in ids},
            bias={i: float(rng.normal()) for i in rng.permutation(vocab)[:5].tolist()},
        )
        allowed = rng.random(vocab) < 0.5
        allowed[0] = True
        x = edited(logits[0], row, allowed)
        token = tokens(logits, [row], mask_of(allowed))[0]
        assert x[token] == pytest.approx(x.max(), abs=1e-5)


def test_rows_take_the_masks_they_name() -> None:
    logits = np.random.default_rng(5).normal(size=(3, 100)).astype(np.float32)
    rows = [Row(key=key, position=9, source=key % 3) for key in range(30)]
    masks = np.concatenate([mask_of(np.arange(100) % 7 == rest) for rest in (0, 3)])
    names = np.array([key % 3 - 1 for key in range(30)], np.int32)
    got = _native.testing.sample_logits(TEAM, logits, **columns(rows), mask=masks, mask_rows=names)[0].tolist()
    every = [mask_of(np.ones(100, bool)), masks[:1], masks[1:]]
    each = [tokens(logits, [row], every[name + 1])[0] for row, name in zip(rows, names.tolist(), strict=True)]
    assert got == each
    assert {token % 7 for token in got[1::3]} == {0}
    assert {token % 7 for token in got[2::3]} == {3}


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        (None, np.zeros(1, np.int32)),
        (np.zeros((2, 1), np.uint32), np.full(1, 2, np.int32)),
        (np.zeros((2, 1), np.uint32), np.full(1, -2, np.int32)),
        (np.zeros((2, 1), np.uint32), np.zeros(2, np.int32)),
    ],
)
def test_a_mask_that_is_not_there_cannot_be_named(mask: np.ndarray | None, names: np.ndarray) -> None:
    with pytest.raises(ValueError, match="mask_rows"):
        _native.testing.sample_logits(
            TEAM, np.zeros((1, 8), np.float32), **columns([Row()]), mask=mask, mask_rows=names
        )


def test_a_mask_allows_only_its_tokens() -> None:
    logits = random_logits(100, 9)
    allowed = np.zeros(100, bool)
    allowed[[3, 64, 99]] = True
    rows = [Row(key=k) for k in range(200)]
    mask = np.repeat(mask_of(allowed), len(rows), axis=0)
    assert set(tokens(logits, rows, mask)) == {3, 64, 99}
    full = np.repeat(mask_of(np.ones(100, bool)), len(rows), axis=0)
    assert tokens(logits, rows, full) == tokens(logits, rows)


# ---- rows without an answer ----

KINDS = [Row(temperature=0), Row(), Row(top_k=3), Row(top_p=0.5), Row(min_p=0.1), Row(typical_p=0.6), Row(logprobs=2)]


@pytest.mark.parametrize("row", KINDS, ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_broken_row_gets_minus_one_and_leaves_the_others_alone(row: Row, bad: float) -> None:
    good = random_logits(70, 1)[0]
    for place in (0, 31, 40, 69):
        broken = good.copy()
        broken[place] = bad
        both = np.stack([broken, good])
        found = tokens(both, [row, replace(row, source=1)])
        assert found == [-1, tokens(good[None], [row])[0]]


def test_nothing_allowed_gets_minus_one() -> None:
    logits = random_logits(70, 1)
    nothing = np.zeros((1, 3), np.uint32)
    for row in KINDS:
        token, logprob, top_ids, _ = sample(logits, [row], nothing)
        assert token.tolist() == [-1] and logprob.tolist() == [-np.inf]
        assert top_ids.shape == (1, max(row.logprobs, 0))
    assert tokens(np.full((1, 70), -np.inf, np.float32), [Row(), Row(temperature=0), Row(logprobs=1)]) == [-1] * 3


# ---- determinism ----


def mixed_rows(count: int) -> list[Row]:
    kinds = [Row(), Row(top_k=9), Row(top_p=0.8), Row(min_p=0.05), Row(temperature=0), Row(logprobs=3, temperature=0.7)]
    edits = {"penalties": (0.1, 0.1, 1.1)}
    return [
        replace(kinds[i % 6], key=i * 7, position=i, source=i % 5, bias={i: 1.0}, history={2: i}, **edits)
        for i in range(count)
    ]


def test_a_row_does_not_depend_on_its_batch_or_the_threads() -> None:
    logits = np.concatenate([random_logits(777, s, 2.0) for s in range(5)])
    rows = mixed_rows(48)
    alone = [[a[0].tolist() for a in sample(logits, [r])] for r in rows]
    rng = np.random.default_rng(1)
    for threads in (1, 2, 3):
        team = _native.Team(threads)
        order = rng.permutation(48)
        found = sample(logits, [rows[i] for i in order], team=team)
        for at, i in enumerate(order):
            token, logprob, top_ids, top = alone[i]
            assert found[0][at] == token and found[1][at] == logprob
            assert found[2][at, : len(top_ids)].tolist() == top_ids and found[3][at, : len(top)].tolist() == top


def test_draws_are_these_for_ever() -> None:
    """Seeded output is a promise: a change here changes what users have seen."""
    logits = np.linspace(-2, 2, 1000, dtype=np.float32)[None]
    assert draws(logits, Row(), 8).tolist() == [962, 941, 185, 919, 939, 910, 400, 856]
    assert draws(logits, Row(top_k=100, temperature=0.5), 8).tolist() == [962, 941, 928, 919, 939, 910, 944, 973]


# ---- log-probabilities ----


def test_logprobs_of_the_edited_logits() -> None:
    """-2 - m asks for m alternatives of what bias, penalties and mask leave; without those it is the same as m."""
    logits = random_logits(70, 4)
    row = Row(temperature=0, logprobs=-2 - 4, bias={1: 3.0}, penalties=(1, 0.5, 1.5), history={0: 2, 5: 0})
    allowed = np.arange(70) % 3 > 0
    x = edited(logits[0], row, allowed)
    expected = x - x.max() - np.log(np.exp(x - x.max()).sum())
    token, logprob, ids, top = sample(logits, [row, Row(temperature=0)], np.repeat(mask_of(allowed), 2, axis=0))
    assert ids[0].tolist() == np.argsort(-expected, kind="stable")[:4].tolist()
    np.testing.assert_allclose(top[0], expected[ids[0]], atol=1e-5)
    assert token[0] == ids[0][0] and logprob[0] == top[0][0]
    plain, same = sample(logits, [Row(logprobs=3)]), sample(logits, [Row(logprobs=-2 - 3)])
    for a, b in zip(plain, same, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("vocab", [33, 5000])
def test_logprobs_are_those_of_the_raw_logits(vocab: int) -> None:
    logits = random_logits(vocab, vocab, 5.0)
    x = logits[0].astype(np.float64)
    expected = x - x.max() - np.log(np.exp(x - x.max()).sum())
    row = Row(temperature=0.3, logprobs=7, bias={1: 3.0}, penalties=(1, 1, 1.5), history={0: 2})
    token, logprob, top_ids, top = sample(logits, [row])
    assert logprob[0] == pytest.approx(expected[token[0]], abs=1e-4)
    best = np.argsort(-x, kind="stable")[:7]
    assert top_ids[0].tolist() == best.tolist()
    np.testing.assert_allclose(top[0], expected[best], atol=1e-4)


def test_alternatives_are_padded_and_ties_go_to_the_lowest_id() -> None:
    logits = np.zeros((1, 50), np.float32)
    logits[0, 40] = 1
    logits[0, 3] = -np.inf
    _, logprob, top_ids, top = sample(logits, [Row(logprobs=4), Row(), Row(logprobs=0), Row(logprobs=1, temperature=0)])
    assert top_ids.tolist() == [[40, 0, 1, 2], [-1] * 4, [-1] * 4, [40, -1, -1, -1]]
    assert np.isinf(top[1]).all() and np.isinf(top[3, 1:]).all()
    assert np.isinf(logprob[1]) and np.isfinite(logprob[[0, 2, 3]]).all()
    assert top[0, 1] == top[0, 2] == top[0, 3]
    few = np.array([[1.0, -np.inf, 0.0]], np.float32)
    assert sample(few, [Row(logprobs=3)])[2].tolist() == [[0, 2, -1]]


# ---- arguments ----


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rows", np.array([1], np.int32)),
        ("rows", np.array([-1], np.int32)),
        ("rows", np.array([0], np.int64)),
        ("rows", np.array([[0]], np.int32)),
        ("temperature", np.array([np.nan], np.float32)),
        ("temperature", np.array([-0.5], np.float32)),
        ("temperature", np.array([np.inf], np.float32)),
        ("temperature", np.array([1.0, 1.0], np.float32)),
        ("top_k", np.array([-1], np.int32)),
        ("top_p", np.array([0.0], np.float32)),
        ("top_p", np.array([1.5], np.float32)),
        ("top_p", np.array([np.nan], np.float32)),
        ("min_p", np.array([-0.1], np.float32)),
        ("min_p", np.array([1.1], np.float32)),
        ("typical_p", np.array([0.0], np.float32)),
        ("typical_p", np.array([np.nan], np.float32)),
        ("key", np.array([1], np.int64)),
        ("position", np.array([-1], np.int32)),
        ("logprobs", np.array([-11], np.int32)),
        ("logprobs", np.array([9], np.int32)),
        ("penalties", np.array([[0, 0, 0]], np.float32)),
        ("penalties", np.array([[np.nan, 0, 1]], np.float32)),
        ("penalties", np.array([[0, np.inf, 1]], np.float32)),
        ("penalties", np.array([[0, 1]], np.float32)),
        ("history_starts", np.array([0, 1], np.int32)),
        ("history_starts", np.array([1, 0], np.int32)),
        ("bias_starts", np.array([0], np.int32)),
        ("mask", np.zeros((1, 2), np.uint32)),
        ("mask", np.zeros((2, 1), np.uint32)),
        ("mask", np.zeros((1, 1), np.int32)),
        ("logits", np.zeros(8, np.float32)),
        ("logits", np.zeros((1, 8), np.float64)),
        ("logits", np.zeros((8, 1), np.float32).T[:, ::-1]),
    ],
)
def test_a_bad_argument_is_named(name: str, value: np.ndarray) -> None:
    good = {"team": TEAM, "logits": np.zeros((1, 8), np.float32), "mask": None, **columns([Row()])}
    with pytest.raises(ValueError, match=name):
        _native.testing.sample_logits(**{**good, name: value})


@pytest.mark.parametrize(
    ("field_name", "changes"),
    [
        ("history_ids", {"history": {8: 1}}),
        ("history_ids", {"history": {-1: 1}}),
        ("history_counts", {"history": {0: -1}}),
        ("bias_ids", {"bias": {8: 1.0}}),
        ("bias_values", {"bias": {0: np.nan}}),
        ("bias_values", {"bias": {0: np.inf}}),
    ],
)
def test_a_bad_list_entry_is_named(field_name: str, changes: dict) -> None:
    with pytest.raises(ValueError, match=field_name):
        sample(np.zeros((1, 8), np.float32), [Row(**changes)])


def test_no_rows_is_no_work() -> None:
    token, logprob, top_ids, top = sample(np.zeros((1, 8), np.float32), [])
    assert token.shape == logprob.shape == (0,) and top_ids.shape == top.shape == (0, 0)
