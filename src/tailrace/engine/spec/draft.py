"""Who guesses, and which guesses count. Pure: the scheduler and a simulator use it as it is.

A sampled token is a function of its row's logits, the request's key and the position (engine/sample), so a step that
computes guesses too can tell for each place which token would have been drawn there. A guess counts exactly when it
is that token: answers are the same bits with any drafter, whatever it guesses (the idea of Leviathan, Kalman, Matias,
ICML 2023, with a comparison in place of rejection sampling; for guesses without a distribution of their own it
accepts as often).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol

from tailrace.engine.sequence import Sequence
from tailrace.engine.step import Row, StepPlan, Work

VOID = -2  # in place of what was sampled behind a rejected guess


class Drafter(Protocol):
    def draft(self, sequences: Seq[Sequence], work: Work) -> list[list[int]]:
        """Guesses for how each of these decoding sequences goes on; an empty list where none are worth their rows.

        `work` is what the step decodes without them. More guesses than a sequence has room for are cut off.
        """
        ...


def guess_reads(tokens: int) -> int:
    """KV tokens that a guess's row counts as reading behind `tokens` others: it reads them together with its sequence's
    row, which was measured to take half to two thirds of what rows of other sequences take."""
    return tokens // 2


def verify(plan: StepPlan, tokens: Seq[int]) -> tuple[list[Row], list[int]]:
    """The plan's rows cut down to their accepted guesses, and its samples with VOID for those that do not count."""
    rows, kept = list(plan.rows), list(tokens)
    for row, sample, more, size in plan.drafts:
        sequence, first, *_ = rows[row]
        guesses = sequence.tokens[first + 1 : first + 1 + size].tolist()
        sampled = [tokens[sample], *tokens[more : more + size]]
        accepted = 0
        while accepted < size and guesses[accepted] == sampled[accepted]:
            accepted += 1
        rows[row] = Row(sequence, first, 1 + accepted)
        kept[more + accepted : more + size] = [VOID] * (size - accepted)
    return rows, kept
