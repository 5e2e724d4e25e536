"""Short chats beside long prompts, and what was foretold, in the simulator: the real plane and scheduler, no noise."""

from __future__ import annotations

import random

import pytest
from benchmarks.serving.live import quantile

from tailrace.plan.simulator import Outcome
from tailrace.traces import TraceRow
from tests.plan.support import row, simulated

SHORT, LONG, ANSWER = 60, 1800, 24
SECONDS = 240.0


def capacity(prompt: int, count: int) -> float:
    """Requests a second when all come at once."""
    return count / simulated([row(0.0, prompt, ANSWER) for _ in range(count)]).seconds


def poisson(rate: float, prompt: int, seed: int) -> list[TraceRow]:
    rng, at, rows = random.Random(seed), 0.0, []
    while (at := at + rng.expovariate(rate)) < SECONDS:
        rows.append(row(at, prompt, ANSWER))
    return rows


def first_tokens(outcome: Outcome) -> list[float]:
    return [one.ttft for one in outcome.records if one.prompt_tokens == SHORT and one.ttft is not None]


def test_short_chats_keep_their_first_tokens_beside_long_prompts() -> None:
    """Both at 30 % of what the machine can do of their kind."""
    short = poisson(0.3 * capacity(SHORT, 60), SHORT, 1)
    long = poisson(0.3 * capacity(LONG, 10), LONG, 2)
    assert len(short) > 300 and len(long) > 15
    alone, beside = simulated(short), simulated(sorted(short + long, key=lambda one: one.arrival or 0.0))
    assert all(one.ok for one in beside.records)
    before, after = first_tokens(alone), first_tokens(beside)
    assert quantile(after, 0.5) < 1.25 * quantile(before, 0.5)
    assert quantile(after, 0.99) < 1.5 * quantile(before, 0.99)
    ends = [one.e2e for one in beside.records if one.prompt_tokens == LONG and one.e2e is not None]
    single = simulated([row(0.0, LONG, ANSWER)]).records[0].e2e
    assert single is not None
    assert quantile(ends, 0.5) < 2.0 * single


@pytest.mark.parametrize("prompt", [SHORT, LONG])
def test_a_class_alone_uses_the_whole_machine(prompt: int) -> None:
    """Work-conserving: the engine is never idle while something waits."""
    outcome = simulated([row(0.0, prompt, ANSWER) for _ in range(12)])
    assert outcome.steps.busy == pytest.approx(outcome.seconds, rel=0.01)
