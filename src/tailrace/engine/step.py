"""The frozen shapes between scheduler, runner and loop: what one step computes, and what came of it."""

from __future__ import annotations

from dataclasses import field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tailrace.engine.beams import Hypothesis
from tailrace.engine.kv.manager import BlockCopy, Eviction
from tailrace.engine.pool import Hidden
from tailrace.engine.sequence import Sequence
from tailrace.frozen import frozen
from tailrace.types import FinishReason

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


BAD = -1  # a token whose logits were not numbers, or whose grammar cannot go on


class Row(NamedTuple):
    """Compute positions first .. first+size-1 of a sequence.

    `score_from` < `score_to`: also the log-probabilities of the prompt tokens at positions score_from .. score_to-1;
    the logits for the token at position t are those of row t-1.
    """

    sequence: Sequence
    first: int
    size: int
    score_from: int = 0
    score_to: int = 0


class Work(NamedTuple):
    """Work counts of a step, the cost model's features."""

    prefill: int = 0  # P: prefill tokens
    decode: int = 0  # D: decode rows
    kv_tokens: int = 0  # K: KV tokens read by decode rows
    attention: int = 0  # A: sum over chunks of chunk * (context + chunk/2)


@frozen
class Preemption:
    """A sequence gave up its blocks and waits to be recomputed; `reason` is machine-readable."""

    request_id: str
    index: int
    lost_tokens: int
    reason: str


class Draft(NamedTuple):
    """Guesses that a decode row computes too: they stand in the sequence's tokens behind the known ones.

    Sample `sample` is for the place behind the known tokens, samples `more` .. `more + size - 1` for the places behind
    each guess. A sample counts only when the guesses before it are the tokens that were sampled.
    """

    row: int  # its place in the plan; the row's last `size` positions are the guesses
    sample: int
    more: int
    size: int


@frozen
class StepPlan:
    """One step. `samplers[i]` gets a token from the logits of the last position of `rows[sample_rows[i]]`; in rows
    with guesses that is the position `behind[i]` places behind the row's first.

    All choices of one prompt are sampled from the same row. Rows: decode first, then prefill chunks.
    """

    rows: tuple[Row, ...]
    samplers: tuple[Sequence, ...]
    sample_rows: tuple[int, ...]
    work: Work
    copies: tuple[BlockCopy, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    drafts: tuple[Draft, ...] = ()
    pooled: int = 0  # rows at the end that are parts of prompts to be vectors

    @property
    def one_each(self) -> bool:
        """Whether each row, in order, is sampled once."""
        return self.sample_rows == tuple(range(len(self.rows)))

    @property
    def behind(self) -> list[int]:
        """For each sample, how many guesses of its row stand before it."""
        found = [0] * len(self.samplers)
        for draft in self.drafts:
            found[draft.more : draft.more + draft.size] = range(1, draft.size + 1)
        return found


@frozen
class Scores:
    """Log-probabilities of prompt tokens start .. start+len(logprobs)-1, with the best alternatives of each."""

    sequence: Sequence
    start: int
    logprobs: F32
    top_ids: I32  # [len, L]
    top_logprobs: F32


@frozen
class StepResult:
    """`tokens[i]` is for `plan.samplers[i]`; BAD when its logits were not numbers."""

    tokens: list[int]
    logprobs: F32
    top_ids: I32  # [len(tokens), L], L the most alternatives any row asked for
    top_logprobs: F32
    scores: tuple[Scores, ...] = field(default=())
    hidden: tuple[Hidden, ...] = field(default=())


class Update(NamedTuple):
    """What a committed step means for one sequence. `token` is None when it only ended; `answer` is then all of it,
    where it was found by beam search."""

    sequence: Sequence
    token: int | None
    sample: int  # index into the result's arrays; -1 without a token
    finish: FinishReason | None
    error: Exception | None = None
    answer: Hypothesis | None = None
