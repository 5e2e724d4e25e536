"""What must hold when many want something at once, in short simulations of benchmarks/serving/scenarios.py."""

from __future__ import annotations

import pytest
from benchmarks.serving.scenarios import comeback, crowd, fairness, foresight, isolation, overload, polite


def test_chats_keep_their_first_token_beside_documents() -> None:
    found = isolation(200.0)
    assert found["documents"] >= 3
    assert found["ratio"] <= 1.5
    assert found["long_over"] <= 1.0


def test_backlogged_tenants_of_equal_weight_are_served_alike() -> None:
    found = fairness(15.0)
    assert found["apart"] <= found["bound"]
    assert found["busy"] == pytest.approx(1.0, abs=0.02)  # nobody idles while somebody waits
    assert found["tail_ratio"] < 0.5  # the modest one's tail is not the greedy one's


def test_weights_hold_within_five_percent() -> None:
    assert fairness(35.0, weights=(3.0, 1.0))["ratio"] == pytest.approx(1.0, abs=0.05)


def test_a_polite_tenant_keeps_its_first_token_beside_a_greedy_one() -> None:
    found = polite(60.0)
    assert found["answered"] == 1.0
    assert found["ratio"] <= 1.25
    assert found["pace"] >= 0.9  # what short steps cost
    assert found["gap_p99"] <= 1.0  # the greedy one's answers go on


def test_so_it_does_at_a_fifth_of_capacity() -> None:
    """Whose answers, slower beside the other one's, need more places than they leave free by themselves."""
    assert polite(60.0, part=0.2, shape=lambda rng: (120, rng.randrange(8, 48)))["ratio"] <= 1.25


def test_overload_costs_no_goodput_and_starves_nobody() -> None:
    found = overload(60.0)
    assert found["part"] > 0.9
    assert found["refused"] > 50
    assert found["without_retry_after"] == 0
    assert found["least_answered"] > 0.8


def test_who_obeys_its_retry_after_is_let_in() -> None:
    found = comeback(200.0)
    assert found["refused"] > 50
    assert found["next_try"] >= 0.9
    assert found["answered"] == 1.0


def test_a_refused_crowd_comes_back_one_by_one() -> None:
    found = crowd(60.0)
    assert found["refused"] > 50
    assert found["next_try"] >= 0.9
    assert found["answered"] > 0.98
    assert found["in_time"] > 0.95


@pytest.mark.parametrize("load", [0.6, 0.9])
def test_the_first_token_is_foretold(load: float) -> None:
    found = foresight(120.0, load)
    assert found["requests"] > 60
    assert found["p50"] < 0.10
    assert found["p90"] < 0.35
    assert abs(found["bias"]) < 0.05  # neither too early nor too late
