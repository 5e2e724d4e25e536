"""Prompt lookup first, and a draft model where that has less to say: the drafter of an engine with a draft model.

The model is asked for sequences whose looked-up guess is less likely right than one of its own, for as many guesses as
gain by the measured time it takes. A fault of it costs the engine nothing but its guesses.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq
from itertools import accumulate
from operator import mul

from tailrace.engine.sequence import Sequence, State
from tailrace.engine.spec.acceptance import Acceptance, Record
from tailrace.engine.spec.gain import Gain, StepTime
from tailrace.engine.spec.lookup import HOPELESS, LookupDrafter
from tailrace.engine.spec.model import DraftModel
from tailrace.engine.step import Work

LENGTH = 8  # most guesses of the model
_RATE = [0.6]  # acceptance before anything is known

log = logging.getLogger(__name__)


class _Past:
    """What the model said of a sequence when it knew `known` tokens, and how often it was right."""

    def __init__(self, own: Record) -> None:
        self.own = own
        self.known = 0
        self.guesses: list[int] = []


class ModelDrafter:
    def __init__(self, cost: StepTime, lookup: LookupDrafter, model: DraftModel) -> None:
        self._cost = cost
        self._lookup = lookup
        self._model: DraftModel | None = model
        self._acceptance = Acceptance(_RATE)
        self._pasts: dict[Sequence, _Past] = {}

    def draft(self, sequences: Seq[Sequence], work: Work) -> list[list[int]]:
        """See Drafter."""
        gain = Gain(self._cost, work)
        if gain.least_chance > HOPELESS:
            return [[] for _ in sequences]
        for ended in [one for one in self._pasts if one.state is State.FINISHED]:
            del self._pasts[ended]
        offers = [self._lookup.offer(sequence, gain.least_chance) for sequence in sequences]
        rates = [self._rate(sequence) for sequence in sequences]
        unsure = [i for i, (_, chances) in enumerate(offers) if not chances or chances[0] < rates[i]]
        for i, guesses in zip(unsure, self._ask([sequences[i] for i in unsure], gain), strict=True):
            if guesses:
                offers[i] = guesses, list(accumulate([rates[i]] * len(guesses), mul))
        sizes = gain.allot([chances for _, chances in offers])
        return [guesses[:size] for (guesses, _), size in zip(offers, sizes, strict=True)]

    def _rate(self, sequence: Sequence) -> float:
        """Learns from what came since the model's last guesses."""
        past = self._pasts.get(sequence)
        if past is None:
            past = self._pasts[sequence] = _Past(self._acceptance.record())
        came = sequence.tokens[past.known : sequence.known].tolist()
        for guess, token in zip(past.guesses, came, strict=False):
            self._acceptance.learn(past.own, 0, guess == token)
            if guess != token:
                break
        past.guesses = []
        return self._acceptance.rate(past.own, 0)

    def _ask(self, sequences: list[Sequence], gain: Gain) -> list[list[int]]:
        none: list[list[int]] = [[] for _ in sequences]
        if self._model is None or not sequences:
            return none
        pasts = [self._pasts[sequence] for sequence in sequences]
        rates = [self._acceptance.rate(past.own, 0) for past in pasts]
        length = gain.length(rates, self._model.seconds, LENGTH)
        if not length:
            for past in pasts:
                self._acceptance.fade(past.own)
            return none
        try:
            guesses = self._model.propose(sequences, length)
        except Exception:
            log.exception("the draft model failed; it is not asked again")
            self._model = None
            return none
        gain.seconds += length * self._model.seconds
        for sequence, past, said in zip(sequences, pasts, guesses, strict=True):
            past.known, past.guesses = sequence.known, said
        return guesses
