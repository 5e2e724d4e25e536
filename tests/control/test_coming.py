"""Arrivals, averaged."""

from __future__ import annotations

from random import Random

import pytest

from tailrace.control.coming import Coming
from tailrace.policy import RequestClass
from tests.control.tickets import entry


def test_rates_and_sizes_are_those_of_what_came() -> None:
    coming, rng, now = Coming(), Random(1), 0.0
    while (now := now + rng.expovariate(4.0)) < 300.0:
        long = rng.random() < 0.25
        kind = RequestClass.LONG if long else RequestClass.INTERACTIVE
        coming.add(entry("x", arrival=now, kind=kind, prompt=2000 if long else 100).ticket, 0.5)
    flows = {flow.prompt.todo: flow for flow in coming.flows(300.0)}
    assert set(flows) == {100, 2000}
    assert flows[100].rate == pytest.approx(3.0, rel=0.3)
    assert flows[2000].rate == pytest.approx(1.0, rel=0.5)
    assert flows[2000].prompt.step_share < 1.0
    assert flows[100].prompt.step_share == 1.0
    assert flows[100].output == pytest.approx(10.0)


def test_what_stopped_coming_is_forgotten() -> None:
    coming = Coming()
    for second in range(60):
        coming.add(entry("x", arrival=float(second)).ticket, 1.0)
    assert coming.flows(60.0)[0].rate == pytest.approx(1.0, rel=0.2)
    assert coming.flows(120.0)[0].rate < 0.15
    assert coming.flows(600.0) == []


def test_only_what_goes_before_a_band_presses_on_it() -> None:
    coming = Coming()
    for second in range(200):
        coming.add(entry("x", arrival=float(second), band=1).ticket, 0.5)
    assert coming.seconds_before(1, 200.0) == 0.0
    assert coming.seconds_before(2, 200.0) == pytest.approx(0.5, rel=0.1)
