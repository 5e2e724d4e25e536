"""Guesses that need no logits: what a grammar forces is known before the model has said a word.

Their places are computed as all others are, for the keys and values, but without the output layer, and nothing is
sampled there. Who asks for log-probabilities gets them the long way; the tokens are the same.
"""

from __future__ import annotations

import numpy as np

from tailrace.engine.step import StepPlan, StepResult


def certain_guesses(plan: StepPlan) -> dict[int, int]:
    """By row of the plan: how many of its first guesses are certain, where any are."""
    found: dict[int, int] = {}
    for row, _, _, size in plan.drafts:
        sequence = plan.rows[row].sequence
        constraint = sequence.constraint
        if constraint is not None and constraint.ahead and sequence.group.request.sampling.logprobs is None:
            found[row] = min(size, len(constraint.ahead))
    return found


def with_certain(plan: StepPlan, asked: list[int], drawn: StepResult) -> StepResult:
    """The result of all samples from that of the `asked` ones: the others get their guesses."""
    count, width, behind = len(plan.samplers), drawn.top_ids.shape[1], plan.behind
    tokens = [0] * count
    for sample in set(range(count)).difference(asked):
        sequence = plan.samplers[sample]
        tokens[sample] = int(sequence.tokens[sequence.known + behind[sample]])
    logprobs = np.full(count, -np.inf, np.float32)
    top_ids = np.full((count, width), -1, np.int32)
    top_logprobs = np.full((count, width), -np.inf, np.float32)
    logprobs[asked], top_ids[asked], top_logprobs[asked] = drawn.logprobs, drawn.top_ids, drawn.top_logprobs
    for sample, token in zip(asked, drawn.tokens, strict=True):
        tokens[sample] = token
    return StepResult(tokens, logprobs, top_ids, top_logprobs, drawn.scores)
