"""What a grammar forces is drafted, always; what others guess is drafted as far as the grammar allows it.

A forced token is certain: the mask of its place allows no other. So computing it in the row of the token before it
costs no more than computing it later, and saves a step. Whether there was room for that changes no token.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq

from tailrace.engine.grammar.constraint import Constraint, is_held, state_of
from tailrace.engine.sequence import Sequence
from tailrace.engine.spec.draft import Drafter
from tailrace.engine.step import Work

LENGTH = 64  # most forced tokens of one choice in a step: the rest comes in the next
TOGETHER = 128  # of all choices, so that neighbours do not wait for them long

log = logging.getLogger(__name__)


class GrammarDrafter:
    def __init__(self, inner: Drafter | None) -> None:
        """`inner` guesses where the grammar leaves a choice, and for sequences without one; None: nobody does."""
        self.inner = inner

    def draft(self, sequences: Seq[Sequence], work: Work) -> list[list[int]]:
        """See Drafter."""
        if not any(is_held(sequence.group) for sequence in sequences):
            return [[] for _ in sequences] if self.inner is None else self.inner.draft(sequences, work)
        forced = [_forced(sequence) for sequence in sequences]
        each = max(1, min(LENGTH, TOGETHER // max(1, sum(map(bool, forced)))))
        forced = [tokens[:each] for tokens in forced]
        if self.inner is not None:
            free = [i for i, tokens in enumerate(forced) if not tokens]
            guesses = self.inner.draft([sequences[i] for i in free], work) if free else []
            for i, tokens in zip(free, guesses, strict=True):
                forced[i] = _vetted(sequences[i], tokens)
        return forced


def _forced(sequence: Sequence) -> list[int]:
    state = state_of(sequence)
    if state is None or state.broken:
        return []
    try:
        state.take(sequence.tokens[sequence.group.prompt_tokens : sequence.known])
    except Exception as error:
        _fail(state, error)
    return state.ahead


def _vetted(sequence: Sequence, guesses: list[int]) -> list[int]:
    state = state_of(sequence)
    if state is None or not guesses:
        return guesses
    try:
        return [] if state.broken else state.vet(guesses)
    except Exception as error:
        _fail(state, error)
        return []


def _fail(state: Constraint, error: Exception) -> None:
    log.error("following a grammar failed: %r", error)
    state.fault = error
