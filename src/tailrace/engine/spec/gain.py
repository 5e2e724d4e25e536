"""How many guesses a step computes: as many as raise the tokens it makes per second, by the step-time model.

A step takes a + c*D seconds: guesses cost c each and spare steps of `a`. Alone, almost any likely guess pays; beside
many others' rows hardly any does, and then none is computed.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol

from tailrace.engine.spec.draft import guess_reads
from tailrace.engine.step import Work

MOST_GUESSES = 64  # of one step, which bounds the memory of their logits
_MARGIN = 1.4  # so that it is none either where the model takes rows for half as dear as they are


class StepTime(Protocol):
    def predict(self, work: Work) -> float:
        """Seconds of a step."""
        ...


class Gain:
    """What guesses are worth beside a step's decode work."""

    def __init__(self, cost: StepTime, work: Work) -> None:
        mean = work.kv_tokens // max(1, work.decode)
        wider = work._replace(decode=work.decode + 1, kv_tokens=work.kv_tokens + guess_reads(mean))
        self.tokens = float(work.decode)
        self.seconds = cost.predict(work)
        self.row_seconds = max(0.0, cost.predict(wider) - self.seconds)

    @property
    def least_chance(self) -> float:
        """A guess less likely than this is a loss."""
        return _MARGIN * self.row_seconds * self.tokens / max(self.seconds, 1e-9)

    def length(self, rates: Seq[float], guess_seconds: float, most: int) -> int:
        """Guesses that a draft model should make for sequences with these acceptance rates, when one more for all of
        them takes it `guess_seconds`."""
        tokens, seconds, chances = self.tokens, self.seconds, list(rates)
        each = guess_seconds + self.row_seconds * len(rates)
        for length in range(most):
            more = sum(chances)
            if more * seconds < _MARGIN * each * tokens:
                return length
            tokens, seconds = tokens + more, seconds + each
            chances = [chance * rate for chance, rate in zip(chances, rates, strict=True)]
        return most

    def allot(self, chances: Seq[Seq[float]]) -> list[int]:
        """Guesses to compute of each sequence. `chances[s][i]`: that guesses 0 .. i of s are all right; they descend.

        The likeliest first, each while the step makes more tokens per second with it than without.
        """
        sizes = [0] * len(chances)
        every = sorted(((chance, s) for s, row in enumerate(chances) for chance in row), reverse=True)
        for chance, s in every[:MOST_GUESSES]:
            if chance < self.least_chance:
                break
            sizes[s] += 1
            self.tokens += chance
            self.seconds += self.row_seconds
        return sizes
