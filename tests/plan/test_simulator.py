"""Whole simulations: times by hand, the same again, what clients are told, and what is shared."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from tailrace.plan.clients import Habits
from tailrace.plan.workload import Scale
from tests.plan.support import EXACT, config, mixed, row, simulated

A, B, C, D, E = EXACT.coefficients


def test_one_request_by_hand() -> None:
    (record,) = simulated([row(0.0, 100, 5)]).records
    prefill = A + B * 100 + E * 100 * 50
    decode = [A + C + D * (100 + made) for made in range(1, 5)]
    assert record.ttft == pytest.approx(prefill, abs=2e-6)
    assert record.e2e == pytest.approx(prefill + sum(decode), abs=5e-6)
    assert record.tpot == pytest.approx(sum(decode) / 4, abs=5e-6)
    assert record.worst_gap == pytest.approx(decode[-1], abs=5e-6)
    assert record.queue == pytest.approx(0.0, abs=1e-6)
    assert record.made == 5
    assert record.cost == pytest.approx(record.e2e, rel=1e-6)  # alone, a request pays for every step


def test_a_request_that_comes_during_a_step_waits_for_its_end() -> None:
    first, second = simulated([row(0.0, 400, 3), row(0.1, 50, 3)]).records
    prefill = A + B * 400 + E * 400 * 200
    assert first.ttft == pytest.approx(prefill, abs=2e-6)
    assert second.ttft is not None
    step = A + B * 50 + E * 50 * 25 + C + D * 401  # its prompt, and the first one's second token
    assert second.ttft == pytest.approx(prefill - 0.1 + step, abs=5e-6)


def test_the_same_seed_gives_the_same_simulation() -> None:
    def outcome(seed: int) -> list[object]:
        noisy = simulated(mixed(60), seed=seed, machine=EXACT.__class__(EXACT.coefficients, noise=0.2))
        return [asdict(record) for record in noisy.records]

    assert outcome(1) == outcome(1)
    assert outcome(1) != outcome(2)


def test_everyone_gets_the_whole_answer_and_nothing_leaks() -> None:
    outcome = simulated(mixed(110, gap=0.05), kv_tokens=4096)  # few enough to start by the queue deadline
    assert all(record.ok and record.made == record.output_tokens for record in outcome.records)
    assert outcome.steps.rows > 1000
    assert outcome.stats.decode_tokens + outcome.stats.prefill_tokens >= sum(r.made for r in outcome.records)


def test_what_does_not_fit_is_refused_and_tried_once() -> None:
    outcome = simulated([row(0.0, 900), row(0.0, 100)], config=config({"max_context": 512}), habits=Habits(0, 5))
    long, short = outcome.records
    assert [refusal.reason for refusal in long.refusals] == ["context_length_exceeded"]
    assert not long.ok
    assert short.ok


def test_who_asks_for_too_much_gets_what_the_context_leaves() -> None:
    (record,) = simulated([row(0.0, 500, 40)], config=config({"max_context": 512}), habits=Habits(4096)).records
    assert record.made == 12


def test_refused_clients_come_back_when_they_are_told() -> None:
    tight = config({"max_sequences": 2}, max_waiting_requests=2)
    rows = [row(0.01 * i, 200, 20) for i in range(12)]
    once = simulated(rows, config=tight)
    assert sum(record.ok for record in once.records) == 4
    patient = simulated(rows, config=tight, habits=Habits(tries=20))
    assert all(record.ok for record in patient.records)
    told = [refusal.retry_after for record in patient.records for refusal in record.refusals]
    assert len(told) >= 8
    assert all(seconds is not None and seconds > 0 for seconds in told)


def test_shared_prefixes_hit_the_real_cache() -> None:
    rows = [row(5.0 * i, 1024 + 40, 4, blocks=(1, 2)) for i in range(4)]
    outcome = simulated(rows)
    assert [record.cached_tokens for record in outcome.records] == [0, 1024, 1024, 1024]
    without = simulated(rows, config=config({"prefix_cache": False}))
    assert {record.cached_tokens for record in without.records} == {0}
    assert outcome.records[1].ttft < without.records[1].ttft  # type: ignore[operator]


def test_memory_pressure_preempts_and_is_counted() -> None:
    rows = [row(0.0, 60, 100) for _ in range(8)]
    outcome = simulated(rows, kv_tokens=64 * 14, config=config({"prefix_cache": False}))
    assert all(record.ok for record in outcome.records)
    assert outcome.stats.preemptions > 0
    assert outcome.stats.recomputed_tokens > 0
    assert sum(record.preemptions for record in outcome.records) == outcome.stats.preemptions


def test_scaling_the_rate_scales_the_load() -> None:
    slow, fast = simulated(mixed(40, gap=2.0)), simulated(mixed(40, gap=2.0), scale=Scale(rate=4.0))
    assert fast.records[-1].arrival == pytest.approx(slow.records[-1].arrival / 4)
    assert fast.steps.busy / fast.seconds > 1.5 * slow.steps.busy / slow.seconds


def test_steps_keep_their_length_deep_in_a_prompt() -> None:
    """A token behind thousands of others costs several times as much: the budget counts that."""
    machine = EXACT.__class__((0.006, 0.001, 0.0015, 4e-6, 6e-7), noise=0.0)
    rows = [row(0.0, 60, 200), row(0.5, 6000, 4)]
    chatting, _ = simulated(rows, machine=machine).records
    assert chatting.worst_gap is not None
    assert 0.05 < chatting.worst_gap < 0.22  # 128 tokens behind 5,800 take 0.58 s
