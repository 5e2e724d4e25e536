"""Which tokens may come next, for the samples of one step: bits over the vocabulary, made while the model runs.

One row for each sample of a choice with a grammar; those without have none and cost nothing. llguidance computes them
without the GIL, on a helper thread beside `forward`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from tailrace.engine.grammar.constraint import Constraint, is_held, state_of
from tailrace.engine.grammar.state import U32
from tailrace.engine.sequence import Sequence
from tailrace.engine.step import BAD, StepPlan, StepResult

if TYPE_CHECKING:
    from llguidance import LLMatcher

I32 = npt.NDArray[np.int32]

log = logging.getLogger(__name__)


class Masks(NamedTuple):
    """`bits` [M, ceil(V/32)], a set bit allows a token; `rows` [samples] is each sample's row, -1: all are allowed."""

    bits: U32
    rows: I32

    def of(self, samples: list[int]) -> Masks:
        """Of some samples only."""
        return Masks(self.bits, self.rows[samples])

    def refuse_broken(self, samplers: Seq[Sequence], result: StepResult) -> StepResult:
        """Samples of choices whose grammar cannot go on become BAD, which ends their requests (Scheduler.commit)."""
        for sample, sequence in enumerate(samplers):
            if sequence.constraint is not None and sequence.constraint.broken:
                result.tokens[sample] = BAD
        return result


class _Place(NamedTuple):
    """A choice in a step: its samples in order, the guesses between them, and its first row."""

    sequence: Sequence
    state: Constraint
    samples: list[int]
    guesses: list[int]
    row: int


class MaskMaker:
    def __init__(self, vocab_size: int, end_ids: frozenset[int]) -> None:
        self._words = -(-vocab_size // 32)
        self._end_ids = end_ids
        self._helper = ThreadPoolExecutor(1, "tailrace-masks")
        self._making: Future[Masks | None] | None = None

    def begin(self, plan: StepPlan) -> None:
        """Make the plan's masks on the helper thread; `take` has them."""
        if any(is_held(sequence.group) for sequence in plan.samplers):
            self._making = self._helper.submit(self.make, plan)

    def take(self) -> Masks | None:
        """The masks of the last plan, as soon as they are made."""
        making, self._making = self._making, None
        return None if making is None else making.result()

    def make(self, plan: StepPlan) -> Masks | None:
        """A fault of one choice breaks its state; its samples are refused by `Masks.refuse_broken`."""
        places = _places(plan)
        if not places:
            return None
        bits = np.zeros((sum(len(place.samples) for place in places), self._words), np.uint32)
        rows = np.full(len(plan.samplers), -1, np.int32)
        plain: list[tuple[LLMatcher, int]] = []
        for place in places:
            rows[place.samples] = range(place.row, place.row + len(place.samples))
            with _isolated(place.state):
                plain += _fill(place, bits[place.row : place.row + len(place.samples)])
        if plain:  # all in one call
            executor = next(place.state.executor for place in places if place.state.executor is not None)
            executor.unsafe_compute_mask_ptr(plain, bits.ctypes.data, self._words * 4, len(bits))
        for place in places:
            self._withhold(place, bits)
        return Masks(bits, rows)

    def _withhold(self, place: _Place, bits: U32) -> None:
        """No ending before it is wanted, unless nothing else may come."""
        stop = place.sequence.group.request.stop
        if not (stop.ignore_eos or stop.min_tokens):
            return
        generated = max(place.sequence.generated, 0)
        for behind in range(len(place.samples)):
            early = generated + behind < stop.min_tokens
            ends = self._end_ids if stop.ignore_eos or early else frozenset()
            row = bits[place.row + behind]
            kept = row.copy()
            for token in ends.union(stop.token_ids if early else ()):
                kept[token >> 5] &= ~np.uint32(1 << (token & 31))
            if kept.any():
                row[:] = kept


def _places(plan: StepPlan) -> list[_Place]:
    drafts = {draft.sample: draft for draft in plan.drafts}
    guessed = {sample for draft in plan.drafts for sample in range(draft.more, draft.more + draft.size)}
    places: list[_Place] = []
    row = 0
    for sample, sequence in enumerate(plan.samplers):
        state = None if sample in guessed else state_of(sequence)
        if state is None:
            continue
        samples, guesses = [sample], []
        draft = drafts.get(sample)
        if draft is not None:
            samples += range(draft.more, draft.more + draft.size)
            guesses = sequence.tokens[sequence.known : sequence.known + draft.size].tolist()
        places.append(_Place(sequence, state, samples, guesses, row))
        row += len(samples)
    return places


def _fill(place: _Place, rows: U32) -> list[tuple[LLMatcher, int]]:
    """Fill what needs no mask computed, or a walk; the matcher that is left to compute, and its row."""
    sequence, state, _, guesses, row = place
    state.take(sequence.tokens[sequence.group.prompt_tokens : sequence.known])
    return state.fill(guesses, rows, row)


@contextmanager
def _isolated(state: Constraint) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        log.exception("following a grammar failed")
        state.fault = error
