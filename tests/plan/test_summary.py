"""A simulation's numbers, by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.figures.slo import Slo
from tailrace.plan.clients import Habits
from tailrace.plan.summary import jain, summarize
from tests.plan.support import config, mixed, row, simulated


def test_the_index_of_fairness() -> None:
    assert jain([3.0, 3.0, 3.0]) == 1.0
    assert jain([1.0, 0.0, 0.0]) == 1.0  # who asked for nothing is not counted
    assert jain([1.0, 3.0]) == pytest.approx(16 / 20)
    assert jain([]) is None


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=20))
def test_the_index_is_between_one_nth_and_one(shares: list[float]) -> None:
    found = jain(shares)
    assert found is not None
    assert 1 / len(shares) - 1e-6 <= found <= 1 + 1e-6


def test_groups_add_up() -> None:
    outcome = simulated(mixed(40))
    summary = summarize(outcome, Slo(ttft=0.5))
    for groups in ("classes", "lengths", "tenants"):
        assert sum(group["requests"] for group in summary[groups].values()) == 40
    assert list(summary["lengths"]) == ["<256", "<1k", "<4k"]
    assert set(summary["tenants"]) == {"c0", "c1", "c2"}
    met = sum(r.ttft <= 0.5 for r in outcome.records)  # type: ignore[operator]
    assert summary["attainment"] == pytest.approx(met / 40)
    assert summary["goodput_per_s"] == pytest.approx(met / outcome.seconds, abs=1e-4)
    assert summary["requests_per_s"] == pytest.approx(40 / outcome.seconds, abs=1e-4)
    assert summary["refusals"]["by_reason"] == {}
    assert summary["engine"]["row_decisions"] == outcome.steps.rows
    assert 0 < summary["engine"]["busy"] <= 1


def test_refusals_and_who_came_back() -> None:
    rows = [row(0.0, 100, 10) for _ in range(5)]
    tight = config({"max_sequences": 1}, max_waiting_requests=1)
    refused = summarize(simulated(rows, config=tight), Slo())["refusals"]
    assert refused["by_reason"] == {"queue_full": 3}
    assert (refused["obeyed"], refused["let_in"], refused["never_answered"]) == (0, 0, 3)
    assert refused["without_retry_after"] == 0
    patient = summarize(simulated(rows, config=tight, habits=Habits(tries=9)), Slo())["refusals"]
    assert patient["let_in"] == 3
    assert patient["obeyed"] == sum(patient["by_reason"].values())
    assert patient["never_answered"] == 0


def test_nothing_answered() -> None:
    summary = summarize(simulated([row(0.0, 9000)]), Slo(ttft=1.0))
    assert (summary["answered"], summary["attainment"], summary["goodput_per_s"]) == (0, 0.0, 0.0)
    assert summary["refusals"]["without_retry_after"] == 1
