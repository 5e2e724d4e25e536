"""What a request is expected to cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tailrace.backends.fake import FakeBackend
from tailrace.control.estimate import Estimator, kv_blocks
from tailrace.control.lengths import AnswerKind
from tailrace.types import GenerateRequest, SamplingParams, StepCosts, StopConditions


@pytest.mark.parametrize(
    ("prompt", "output", "sequences", "blocks"),
    [(64, 0, 1, 1), (64, 1, 1, 2), (65, 63, 1, 2), (65, 63, 3, 4), (128, 64, 2, 4), (10, 10.9, 4, 4)],
)
def test_choices_share_the_whole_blocks_of_their_prompt(
    prompt: int, output: float, sequences: int, blocks: int
) -> None:
    assert kv_blocks(prompt, output, sequences, 64) == blocks


def estimator(**load: float) -> Estimator:
    backend = FakeBackend(max_context=4096)
    backend.caps = replace(backend.caps, costs=StepCosts(1.0, 0.1, 0.5, 0.001, 0.0001))
    report = replace(backend.load(), **load)
    backend.load = lambda: report  # type: ignore[method-assign]
    return Estimator(backend)


def one(prompt: int, most: int, n: int = 1) -> GenerateRequest:
    return GenerateRequest("r", "fake", np.ones(prompt, np.int32), SamplingParams(), StopConditions(most), n=n)


KIND = AnswerKind("a", "chat", "fake")


def test_seconds_are_those_of_the_step_formula() -> None:
    made = estimator()
    for _ in range(100):
        made.learn(KIND, 21, cut=False)
    found = made.estimate(one(100, 500, n=2), KIND)
    assert found.prefill_seconds == pytest.approx(100 * 0.1 + 0.0001 * 100 * 50)
    rows = found.output_mean - 1
    assert found.output_mean == pytest.approx(21, rel=0.25)
    assert found.decode_seconds == pytest.approx(2 * rows * (0.5 + 0.001 * (100 + found.output_mean / 2)))
    assert found.answer_tokens == 1000
    assert found.blocks == kv_blocks(100, found.output_mean, 2, 16)
    assert found.output_q80 <= found.output_q90 <= 500


def test_the_steps_constant_is_paid_in_proportion() -> None:
    plain, marked = estimator(), estimator(prefill_markup=1.5, decode_markup=3.0)
    cheap, dear = (each.estimate(one(64, 10), KIND) for each in (plain, marked))
    assert dear.prefill_seconds == pytest.approx(1.5 * cheap.prefill_seconds)
    assert dear.decode_seconds == pytest.approx(3.0 * cheap.decode_seconds)


def test_cached_tokens_cost_nothing() -> None:
    made = estimator()
    made._backend.match_prefix = lambda tokens, salt=b"": 64  # type: ignore[method-assign]
    found = made.estimate(one(100, 10), KIND)
    assert found.uncached_tokens == 36
    assert found.prefill_seconds == pytest.approx(36 * 0.1 + 0.0001 * 36 * (64 + 18))
    scored = made.estimate(replace(one(100, 10), prompt_logprobs=1), KIND)
    assert scored.uncached_tokens == 100
