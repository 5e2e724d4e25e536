"""Whether the answers that would run together fit the KV memory, by what they are expected to grow to.

Reserving each answer's maximum would leave most of the memory empty; looking only at what is there now would start
more than can finish, and preemption would throw work away. So a request starts when the expected blocks at the worst
moment ahead - some answers have ended by then, the others have grown - are at most capacity * overbook. `overbook`
follows what is observed: up a little while the bound holds requests back and nothing is recomputed, down by a fifth
when more than 1 % of the computed tokens were computed again. Owns that bound; knows nothing of who is first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

_LEAST, _MOST = 0.5, 2.0
_UP, _DOWN = 0.02, 0.8
_THRASH = 0.01  # recomputed / computed tokens
_WINDOW = 4096  # computed tokens, between two looks


class Demand(NamedTuple):
    """One request's memory: `tokens` now, `growth` more with each step, for `left` steps as far as one can tell."""

    tokens: float
    growth: int
    left: float


class KvAdmission:
    def __init__(self, total_blocks: int, block_tokens: int) -> None:
        """`total_blocks` 0: memory is not known, and holds everything."""
        self.overbook = 1.0
        self._capacity = total_blocks * block_tokens
        self._block_tokens = block_tokens
        self._held_back = False
        self._computed = self._recomputed = 0  # when last looked

    def fits(self, new: Demand, running: Iterable[Demand]) -> bool:
        """Beside those that run; alone everything fits that can run at all."""
        demands = list(running)
        if not demands or not self._capacity:
            return True
        demands.append(new)
        fits = self.peak(demands) <= self._capacity * self.overbook
        self._held_back |= not fits
        return fits

    def peak(self, demands: list[Demand]) -> float:
        """Tokens of memory at the worst moment ahead; a half-filled block counts for each sequence."""
        tokens, growth, most = 0.0, 0, 0.0
        for demand in sorted(demands, key=lambda one: -one.left):
            tokens += demand.tokens + self._block_tokens / 2 * demand.growth
            growth += demand.growth
            most = max(most, tokens + growth * demand.left)
        return most

    def observe(self, computed: int, recomputed: int) -> None:
        """Counts of tokens since the start."""
        done = computed - self._computed
        if done < _WINDOW:
            return
        if (recomputed - self._recomputed) > _THRASH * done:
            self.overbook = max(self.overbook * _DOWN, _LEAST)
        elif self._held_back:
            self.overbook = min(self.overbook + _UP, _MOST)
        self._held_back = False
        self._computed, self._recomputed = computed, recomputed
