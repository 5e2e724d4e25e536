"""The step-time model: what it learns, and what it makes of it."""

from __future__ import annotations

import numpy as np
import pytest

from tailrace.clock import ManualClock
from tailrace.engine.calibrate import calibrate
from tailrace.engine.cost import CostModel, CostSettings, fit
from tailrace.engine.fake_runner import FakeRunner
from tailrace.engine.kv.manager import KvManager
from tailrace.engine.step import StepPlan, StepResult, Work

TRUE = np.array([2e-3, 4e-4, 1e-3, 2e-7, 1e-8])


def seconds(work: Work, coefficients: np.ndarray = TRUE) -> float:
    return float(coefficients @ np.array((1, *work)))


def some_work(rng: np.random.Generator) -> Work:
    prefill, decode = int(rng.integers(0, 512)), int(rng.integers(0, 32))
    return Work(prefill, decode, decode * int(rng.integers(1, 2000)), prefill * int(rng.integers(1, 2000)))


def test_the_fit_finds_the_coefficients() -> None:
    rng = np.random.default_rng(0)
    samples = [(work, seconds(work)) for work in (some_work(rng) for _ in range(12))]
    assert fit(samples) == pytest.approx(TRUE, rel=1e-6)


def test_a_fit_is_never_negative() -> None:
    samples = [(Work(prefill=p), 0.01 - p * 1e-6) for p in (1, 100, 1000, 2000)]
    assert (fit(samples) >= 0).all()


def test_it_follows_the_machine() -> None:
    """Twice as slow from one step on: predictions are within 5 % after 300 steps."""
    rng = np.random.default_rng(1)
    model = CostModel(coefficients=TRUE)
    for _ in range(300):
        work = some_work(rng)
        model.observe(work, seconds(work, 2 * TRUE))
    errors = [model.predict(work) / seconds(work, 2 * TRUE) - 1 for work in (some_work(rng) for _ in range(50))]
    assert max(map(abs, errors)) < 0.05
    assert (model.coefficients >= 0).all()


def test_what_is_expected_now_follows_the_last_second() -> None:
    """A neighbour takes half of the machine: after a second of steps nearly all of it is expected, long before it is
    learned, and it is as soon forgotten."""
    model, work = CostModel(coefficients=TRUE), Work(decode=8, kv_tokens=1000)
    for _ in range(500):
        model.observe(work, seconds(work))
    assert model.expect(work) == pytest.approx(seconds(work), rel=0.01)
    for _ in range(100):  # a second
        model.observe(work, 2 * seconds(work))
    assert model.expect(work) == pytest.approx(2 * seconds(work), rel=0.2)
    assert model.costs.decode * 8 + model.costs.step + model.costs.kv * 1000 == pytest.approx(model.expect(work))


def test_one_stall_changes_little() -> None:
    rng = np.random.default_rng(2)
    model = CostModel(coefficients=TRUE)
    for _ in range(100):
        work = some_work(rng)
        model.observe(work, seconds(work))
    before = model.predict(Work(prefill=256))
    model.observe(Work(prefill=256), 10.0)
    assert model.predict(Work(prefill=256)) < 2 * before


def test_a_long_run_of_equal_steps_does_not_blow_up() -> None:
    model = CostModel(coefficients=TRUE)
    work = Work(decode=8, kv_tokens=1000)
    for _ in range(20_000):
        model.observe(work, seconds(work))
    assert model.predict(work) == pytest.approx(seconds(work), rel=1e-3)
    assert model.predict(Work(prefill=128)) == pytest.approx(seconds(Work(prefill=128)), rel=0.5)


def test_the_spread_is_the_quantile_of_the_ratio() -> None:
    rng = np.random.default_rng(3)
    model = CostModel(CostSettings(least_gain=0.001), TRUE)
    over = 0
    for step in range(4000):
        work = some_work(rng)
        measured = seconds(work) * float(rng.choice([0.9, 1.0, 1.1, 1.4]))
        over += step >= 1000 and measured > model.predict(work) * model.spread
        model.observe(work, measured)
    assert over / 3000 == pytest.approx(0.1, abs=0.04)


def test_the_chunk_keeps_a_step_under_its_target() -> None:
    model = CostModel(coefficients=2 * TRUE)
    chunk = model.chunk_tokens(8, 8000)
    assert model.predict(Work(chunk, 8, 8000)) * model.spread <= model.settings.decode_target
    assert model.predict(Work(chunk + 32, 8, 8000)) * model.spread > model.settings.decode_target


@pytest.mark.parametrize(
    ("coefficients", "chunk"),
    [
        ([0, 1.0, 0, 0, 0], (512, 128)),  # hopelessly slow: prompts still move
        ([0, 0, 0, 0, 0], (2048, 2048)),  # free: bounded
        ([1e-4, 1e-4, 0, 0, 0], (512, 256)),  # throughput does not grow any more
        ([1e-2, 1.5e-3, 2e-3, 0, 0], (512, 128)),  # a small model on two slow cores: 100 tokens in 200 ms
        ([1e-2, 1e-3, 2e-3, 0, 0], (512, 160)),  # on two better ones
        ([2e-2, 1e-4, 0, 0, 0], (1792, 1616)),
    ],
)
def test_the_chunk_has_bounds(coefficients: list[float], chunk: tuple[int, int]) -> None:
    """Alone, and beside one decoding sequence."""
    model = CostModel(coefficients=np.array(coefficients))
    assert (model.chunk_tokens(0, 0), model.chunk_tokens(1, 0)) == chunk


def two_core_machine(work: Work) -> float:
    return seconds(work, np.array([8e-3, 1.2e-3, 2e-3, 8e-7, 8e-9]))


BAD_PRIORS = {
    "ten times too slow": [10, 10, 10, 10, 10],
    "forty times too slow": [40, 40, 40, 40, 40],
    "ten times too fast": [0.1, 0.1, 0.1, 0.1, 0.1],
    "prefill alone too slow": [1, 10, 1, 1, 1],
    "prefill not seen": [1, 0, 1, 1, 0],
    "rows not seen": [1, 1, 0, 0, 0],
}


def serve_prompts(model: CostModel, steps: int, slowdown: float = 1.0, seed: int = 4) -> None:
    """Four sequences decode; after every eight steps a prompt of 600 tokens comes in the model's own chunks."""
    rng = np.random.default_rng(seed)
    left = before = 0
    for step in range(steps):
        if left == 0 and step % 8 == 0:
            left, before = 600, 0
        chunk = min(left, model.chunk_tokens(4, 1200))
        work = Work(chunk, 4, 1200, chunk * (before + chunk // 2))
        model.observe(work, two_core_machine(work) * slowdown * float(rng.lognormal(0, 0.08)))
        left, before = left - chunk, before + chunk


def wrong_by(model: CostModel, slowdown: float = 1.0) -> float:
    """The worst relative error over a decode step and a mixed one."""
    works = (Work(0, 4, 1200), Work(128, 4, 1200, 128 * 64))
    return max(abs(model.predict(work) / (slowdown * two_core_machine(work)) - 1) for work in works)


@pytest.mark.parametrize("factors", BAD_PRIORS.values(), ids=BAD_PRIORS)
def test_a_bad_prior_is_corrected_within_tens_of_steps(factors: list[float]) -> None:
    model = CostModel(coefficients=np.array([8e-3, 1.2e-3, 2e-3, 8e-7, 8e-9]) * factors)
    serve_prompts(model, 80)
    assert wrong_by(model) < 0.25
    assert 128 <= model.chunk_tokens(4, 1200) <= 176


def test_a_busy_neighbour_is_followed_and_forgotten() -> None:
    model = CostModel(coefficients=np.array([8e-3, 1.2e-3, 2e-3, 8e-7, 8e-9]))
    for slowdown in (1.0, 3.0, 1.0):
        serve_prompts(model, 80, slowdown)
        assert wrong_by(model, slowdown) < 0.25


def test_two_stalls_with_a_step_between_change_little() -> None:
    model = CostModel(coefficients=np.array([8e-3, 1.2e-3, 2e-3, 8e-7, 8e-9]))
    serve_prompts(model, 80)
    before = model.predict(Work(0, 4, 1200))
    for stall in (5.0, 0.0, 5.0):
        work = Work(0, 4, 1200)
        model.observe(work, two_core_machine(work) + stall)
    assert model.predict(Work(0, 4, 1200)) < 1.5 * before


def test_draining_takes_the_waiting_work_over_the_recent_pace() -> None:
    model = CostModel(coefficients=TRUE)
    assert model.drain_seconds(1000, 2, mean_output=100) == pytest.approx(1000 * 4e-4 + 2 * 100 * 1e-3)
    model.observe(Work(prefill=500), 1.0)
    assert model.drain_seconds(1000, 2, mean_output=100) == pytest.approx((1000 + 200) / 500)


class _Timed(FakeRunner):
    """Takes the time that TRUE says."""

    def __init__(self, blocks: int, clock: ManualClock) -> None:
        super().__init__(blocks)
        self._clock = clock

    def sample(self, plan: StepPlan) -> StepResult:
        self._clock.advance(seconds(plan.work))
        return super().sample(plan)


class _Interrupted(_Timed):
    """A neighbour takes the machine for a while, right at the start."""

    def forward(self, plan: StepPlan) -> None:
        super().forward(plan)
        if self._clock.now() < 0.15:
            self._clock.advance(0.05)


def test_a_burst_of_a_neighbour_does_not_reach_the_prior() -> None:
    clock, kv = ManualClock(), KvManager(64, max_blocks=16)
    found = calibrate(_Interrupted(64, clock), kv, clock, slots=32, max_context=1024)
    assert found == pytest.approx(TRUE, rel=1e-3)


@pytest.mark.parametrize(("budget", "steps"), [(0.0, 9), (1e9, 41)])  # a round of eight shapes, one before to warm up
def test_calibration_takes_one_round_to_five(budget: float, steps: int) -> None:
    clock, kv = ManualClock(), KvManager(64, max_blocks=16)
    runner = _Timed(64, clock)
    calibrate(runner, kv, clock, slots=32, max_context=1024, budget=budget)
    assert runner.steps == steps


def test_calibration_measures_and_leaves_no_trace() -> None:
    clock, kv = ManualClock(), KvManager(64, max_blocks=16)
    found = calibrate(_Timed(64, clock), kv, clock, slots=32, max_context=1024)
    assert found == pytest.approx(TRUE, rel=1e-3)
    kv.check([])
    assert kv.pool.free == 64


@pytest.mark.parametrize(("blocks", "slots", "context"), [(1, 1, 64), (2, 4, 128), (64, 1, 1024)])
def test_calibration_of_a_small_engine_leaves_out_what_does_not_fit(blocks: int, slots: int, context: int) -> None:
    clock, kv = ManualClock(), KvManager(blocks, max_blocks=16)
    found = calibrate(_Timed(blocks, clock), kv, clock, slots=slots, max_context=context)
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    assert kv.pool.free == blocks


def test_the_error_is_how_far_predictions_were_off() -> None:
    model = CostModel(coefficients=TRUE)
    work = Work(decode=4)
    assert model.error == 0
    for _ in range(3):
        model.observe(work, model.predict(work) * 1.2)
    assert 0.01 < model.error < 0.05
    model.observe(work, 100.0)
    assert model.error < 0.1
