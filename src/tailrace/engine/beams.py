"""Beam search: which beginnings of an answer go on, which are finished, and when the search is over.

    offers of the live beams -> candidates, the most likely first -> live beams of the next length | finished

The rules are those of `transformers` (`generate` with `num_beams`): of all continuations of the live beams, those that
end count as finished where they are among the `width` most likely, and the `width` most likely of the others live on.
What is finished is ranked by  sum of log-probabilities / tokens ** length_penalty  (its generated tokens, an end token
included), and the best `width` are kept. Equal ones rank as their beams did, then as their tokens did, so that the
answers are a function of the prompt alone. Owns no sequence and no memory: `beam_step.py` carries it out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, pow
from typing import NamedTuple

from tailrace.types import FinishReason, GenerateRequest


class Offer(NamedTuple):
    """What may come behind a beam: the most likely tokens and their log-probabilities, best first."""

    ids: list[int]
    logprobs: list[float]


@dataclass(frozen=True, slots=True)
class Trail:
    """A generated token, those before it, and what was on offer in its place."""

    before: Trail | None
    token: int
    logprob: float
    offer: Offer


class Beam(NamedTuple):
    """A beginning that lives on. `parent`: the rank of the beam it continues; `total`: its log-probabilities' sum."""

    parent: int
    total: float
    trail: Trail | None


class Hypothesis(NamedTuple):
    """An answer that is finished; `score` ranks it."""

    score: float
    trail: Trail
    reason: FinishReason

    def steps(self) -> list[Trail]:
        """Its tokens in order."""
        found: list[Trail] = []
        trail: Trail | None = self.trail
        while trail is not None:
            found.append(trail)
            trail = trail.before
        return found[::-1]


class Search:
    """The search of one request. `live` are its beams, best first; `finished` the best answers so far, best first."""

    def __init__(self, request: GenerateRequest, end_ids: frozenset[int], vocab_size: int) -> None:
        """`end_ids` are the model's end tokens. The request has `beams`."""
        assert request.beams is not None
        stop = request.stop
        self.width = request.n
        self._rule = request.beams
        self._always = end_ids if request.grammar is not None else frozenset[int]()  # they come where nothing else may
        self._ends = frozenset(stop.token_ids) | (frozenset() if stop.ignore_eos else end_ids) | self._always
        self._min_tokens, self._max_tokens = stop.min_tokens, stop.max_tokens
        # So many that `width` are left whatever of them ends, and what the answer shows beside.
        self.alternatives = min(max(self.width + len(self._ends), request.sampling.logprobs or 0), vocab_size)
        self.live = [Beam(0, 0.0, None)]
        self.finished: list[Hypothesis] = []
        self._length = 0  # generated tokens of the live beams

    def advance(self, offers: list[Offer]) -> bool:
        """Take in what may follow each live beam. False: the search is over, and `finished` has the answers."""
        self._length += 1
        last = self._length == self._max_tokens
        live: list[Beam] = []
        for place, (beam, ended) in enumerate(self._candidates(offers)):
            if not (ended or last):
                live.append(beam)
            elif place < self.width:
                self._finish(beam, FinishReason.STOP if ended else FinishReason.LENGTH)
            if len(live) == self.width or (last and place >= self.width):
                break
        self.live = live
        return bool(live) and self._goes_on(live[0].total)

    def _candidates(self, offers: list[Offer]) -> Iterator[tuple[Beam, bool]]:
        """Continuations, the most likely first, and whether each ends the answer; ends that come too early are none."""
        found = [
            (-(beam.total + logprob), rank, place, token)
            for rank, (beam, offer) in enumerate(zip(self.live, offers, strict=True))
            for place, (token, logprob) in enumerate(zip(*offer, strict=True))
            if token >= 0 and logprob > -inf
        ]
        early = self._length < self._min_tokens
        for cost, rank, place, token in sorted(found):
            ended = token in self._ends
            if ended and early and token not in self._always:
                continue
            offer = offers[rank]
            trail = Trail(self.live[rank].trail, token, offer.logprobs[place], offer)
            yield Beam(rank, -cost, trail), ended

    def _finish(self, beam: Beam, reason: FinishReason) -> None:
        assert beam.trail is not None
        score = beam.total / pow(self._length, self._rule.length_penalty)
        self.finished.append(Hypothesis(score, beam.trail, reason))
        self.finished.sort(key=lambda each: -each.score)  # stable: the earlier of equals stays in front
        del self.finished[self.width :]

    def _goes_on(self, best: float) -> bool:
        """Whether a live beam may still get among the finished; `best` is the best one's sum."""
        rule = self._rule
        if len(self.finished) < self.width:
            return True
        if rule.early_stopping is True:
            return False
        never = rule.early_stopping is None and rule.length_penalty > 0
        length = self._max_tokens if never else self._length
        return best / pow(length, rule.length_penalty) > self.finished[-1].score
