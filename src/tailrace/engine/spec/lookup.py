"""Prompt lookup: a sequence goes on as it did where its last tokens stood before (Saxena, "Prompt lookup decoding",
2023; Yang and others, arXiv 2304.04487). No model, no training; strong where answers repeat their prompts.

Owns each sequence's index and record, kept in its `notes` and gone with it. Every next token says whether the guess for
it was right, also when nothing was drafted, so that the rates are known before a row is spent on them.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from tailrace.engine.sequence import Sequence
from tailrace.engine.spec.acceptance import Acceptance, Record
from tailrace.engine.spec.gain import Gain, StepTime
from tailrace.engine.spec.ngrams import LONGEST, NgramIndex
from tailrace.engine.step import Work

LENGTH = 12  # most guesses of one sequence
HOPELESS = 0.9  # no guess is this likely for long: when less does not pay, don't look

# Acceptance rate by tokens that agree before a guess, over six kinds of prompts answered by a small model.
_RATES = [0.0, 0.2, 0.5, 0.6, 0.68, 0.72, 0.76, 0.78, 0.8, 0.82, 0.84, 0.85, 0.86, 0.87, 0.88, 0.9, 0.95]


class _Notes:
    """What the drafter keeps of one sequence: `agree` tokens say that it goes on as from `place`."""

    __slots__ = ("agree", "index", "own", "place")

    def __init__(self, own: Record) -> None:
        self.index = NgramIndex()
        self.own = own
        self.place = 0
        self.agree = 0


class LookupDrafter:
    def __init__(self, cost: StepTime) -> None:
        self._cost = cost
        self._acceptance = Acceptance(_RATES)

    def draft(self, sequences: Seq[Sequence], work: Work) -> list[list[int]]:
        """See Drafter."""
        gain = Gain(self._cost, work)
        if gain.least_chance > HOPELESS:
            return [[] for _ in sequences]
        offers = [self.offer(sequence, gain.least_chance) for sequence in sequences]
        sizes = gain.allot([chances for _, chances in offers])
        return [guesses[:size] for (guesses, _), size in zip(offers, sizes, strict=True)]

    def offer(self, sequence: Sequence, least: float) -> tuple[list[int], list[float]]:
        """(guesses, chances): chances[i] that guesses 0 .. i are all right, as long as that is at least `least`."""
        notes = sequence.notes
        if not isinstance(notes, _Notes):
            notes = sequence.notes = _Notes(self._acceptance.record())
        self._catch_up(notes, sequence)
        chances: list[float] = []
        chance = 1.0
        for ahead in range(min(LENGTH, sequence.draft_room) if notes.agree else 0):
            chance *= self._acceptance.rate(notes.own, min(LONGEST, notes.agree + ahead))
            if chance < least:
                break
            chances.append(chance)
        return notes.index.after(notes.place, len(chances)) if chances else [], chances

    def _catch_up(self, notes: _Notes, sequence: Sequence) -> None:
        """Take in the tokens since the last time, learn from them, and find where to go on from."""
        index = notes.index
        end = len(index.tokens)
        index.extend(sequence.tokens[end : sequence.known])
        if not (notes.agree and self._went_on(notes, end)):
            notes.place, notes.agree = index.find()

    def _went_on(self, notes: _Notes, end: int) -> bool:
        """Go along while the tokens from `end` on are those from the place on; False at the first that is not."""
        tokens = notes.index.tokens
        for came in range(end, len(tokens)):
            right = tokens[notes.place] == tokens[came]
            self._acceptance.learn(notes.own, notes.agree, right)
            if not right:
                return False
            notes.place += 1
            notes.agree = min(LONGEST, notes.agree + 1)
        return True
