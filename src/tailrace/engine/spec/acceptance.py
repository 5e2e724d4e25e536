"""How likely a guess is right, by what speaks for it: learned from every guess, whether it was computed or not.

Guesses are told apart by their support, a small number (for prompt lookup: how many tokens before it agree). A
sequence's own record counts beside everyone's, the more the longer it is; old guesses fade from both.
"""

from __future__ import annotations

_EVERYONE_FADES = 0.998
_OWN_FADES = 0.95
_BORROWED = 8.0  # guesses of everyone's that a sequence's own record begins with


class Record:
    """Right and all guesses, by support."""

    __slots__ = ("_all", "_right")

    def __init__(self, supports: int) -> None:
        self._right = [0.0] * supports
        self._all = [0.0] * supports

    def add(self, support: int, right: bool, fades: float) -> None:
        self._right[support] = self._right[support] * fades + right
        self._all[support] = self._all[support] * fades + 1.0

    def fade(self, fades: float) -> None:
        self._right = [value * fades for value in self._right]
        self._all = [value * fades for value in self._all]

    def rate(self, support: int, prior: float, weight: float) -> float:
        """Acceptance rate, as if `weight` guesses had been right at the rate `prior` before."""
        return (self._right[support] + weight * prior) / (self._all[support] + weight)


class Acceptance:
    def __init__(self, prior: list[float]) -> None:
        """`prior[support]`: the rate before anything is learned."""
        self._prior = prior
        self._everyone = Record(len(prior))

    def record(self) -> Record:
        """A sequence's own."""
        return Record(len(self._prior))

    def rate(self, own: Record, support: int) -> float:
        """Chance that a guess with this support is right, those before it being right."""
        everyone = self._everyone.rate(support, self._prior[support], _BORROWED)
        return own.rate(support, everyone, _BORROWED)

    def fade(self, own: Record) -> None:
        """Nothing was guessed: trust what was learned a little less, so that it is tried again some time."""
        self._everyone.fade(_EVERYONE_FADES)
        own.fade(_EVERYONE_FADES)

    def learn(self, own: Record, support: int, right: bool) -> None:
        self._everyone.add(support, right, _EVERYONE_FADES)
        own.add(support, right, _OWN_FADES)
