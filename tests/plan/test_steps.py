"""Step times: the formula, its noise, and the forms in which a machine is given."""

from __future__ import annotations

import json
from math import exp, log
from pathlib import Path

import pytest
from numpy import corrcoef, std

from tailrace.engine.step import Work
from tailrace.errors import ConfigError
from tailrace.figures.numbers import quantile
from tailrace.plan.steps import TYPICAL, Machine, StepTimes, cost_model, parse_machine

WORK = Work(prefill=100, decode=4, kv_tokens=1000, attention=5000)


def test_the_formula_by_hand() -> None:
    exact = StepTimes(Machine((0.01, 0.001, 0.002, 1e-6, 1e-7), noise=0.0), seed=0)
    assert exact.seconds(WORK) == pytest.approx(0.01 + 0.1 + 0.008 + 0.001 + 0.0005)


def test_noise_repeats_by_seed_and_has_the_stated_spread() -> None:
    def draws(seed: int) -> list[float]:
        steps = StepTimes(Machine((1.0, 0.0, 0.0, 0.0, 0.0), noise=0.1), seed)
        return [steps.seconds(WORK) for _ in range(4000)]

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)
    assert quantile(sorted(draws(1)), 0.5) == pytest.approx(1.0, rel=0.02)
    assert quantile(sorted(draws(1)), 0.9) == pytest.approx(1.137, rel=0.02)  # exp(1.2816 * 0.1)


def test_noise_that_lasts_is_about_the_same_for_a_while() -> None:
    steps = StepTimes(Machine((1.0, 0.0, 0.0, 0.0, 0.0), noise=0.2, lasting=20.0), seed=1)
    drawn = []
    for _ in range(20_000):
        drawn.append(log(steps.seconds(WORK)))
        steps.count(1, 1.0)
    assert std(drawn) == pytest.approx(0.2, rel=0.1)
    assert corrcoef(drawn[:-1], drawn[1:])[0, 1] == pytest.approx(exp(-1 / 20), abs=0.02)
    assert corrcoef(drawn[:-40], drawn[40:])[0, 1] == pytest.approx(exp(-2), abs=0.1)


def test_measured_ratios_come_in_their_order() -> None:
    machine = Machine((1.0, 0.0, 0.0, 0.0, 0.0), prefill_ratios=(0.5, 2.0), decode_ratios=(3.0,))
    steps = StepTimes(machine, seed=0)
    drawn = [steps.seconds(WORK) for _ in range(4)]
    assert drawn in ([0.5, 2.0] * 2, [2.0, 0.5] * 2)
    assert steps.seconds(Work(decode=1, kv_tokens=5)) == 3.0


def test_the_cost_model_knows_the_machine() -> None:
    machine = Machine((0.01, 0.001, 0.002, 1e-6, 1e-7), noise=0.0)
    assert cost_model(machine).predict(WORK) == pytest.approx(StepTimes(machine, 0).seconds(WORK))


def test_forms(tmp_path: Path) -> None:
    assert parse_machine("typical", 0.1).coefficients == TYPICAL
    assert parse_machine("0.1,0.2,0.3,0.4,0.5", 0.1) == Machine((0.1, 0.2, 0.3, 0.4, 0.5), 0.1, said="as given")
    kept = tmp_path / "kept.json"
    kept.write_text("[0.1, 0.2, 0.3, 0.4, 0.5]")
    assert parse_machine(str(kept), 0.0) == Machine((0.1, 0.2, 0.3, 0.4, 0.5), 0.0, said="from kept.json")
    kept.write_text(json.dumps({"learned": [0.1, 0.2, 0.3, 0.4, 0.5], "standard": [1, 1, 1, 1, 1]}))
    assert parse_machine(str(kept), 0.0).coefficients == (0.1, 0.2, 0.3, 0.4, 0.5)
    kept.write_text(json.dumps({"coefficients": [1, 0, 0, 0, 0], "prefill_ratios": [0.9, 1.1], "overhead": 0.002}))
    assert parse_machine(str(kept), 0.0) == Machine((1, 0, 0, 0, 0), 0.0, (0.9, 1.1), (), 0.002, "from kept.json")


@pytest.mark.parametrize("text", ["fast", "1,2,3", "1,2,3,4,x", "0,0,0,0,0", "1,1,1,1,-1", "nan,1,1,1,1"])
def test_what_is_no_machine_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--steps"):
        parse_machine(text, 0.0)


@pytest.mark.parametrize("text", ["{", "3", '{"coefficients": "fast"}', '{"ratios": [1]}', "[1, 2]"])
def test_a_file_that_holds_no_machine_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "steps.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="--steps"):
        parse_machine(str(path), 0.0)
