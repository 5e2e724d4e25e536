"""Beam searches among the running sequences: each live beam is a sequence, and all of a request advance together.

A sequence whose next tokens are on offer waits (nothing is left to compute) until the others of its search have theirs;
one that was preempted meanwhile computes, and is offered, the same again. Then the search says which beams go on: a
beam's first continuation keeps its sequence, a further one forks its blocks (full ones are shared, the one that is
partly full is copied when somebody writes), and those without give their blocks back. Sequences that no beam needs
keep their slot.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from tailrace.engine.beams import Offer, Search
from tailrace.engine.sequence import NO_SLOT, Group, Sequence, State
from tailrace.engine.step import StepResult, Update
from tailrace.types import FinishReason

if TYPE_CHECKING:
    from tailrace.engine.scheduler import Scheduler


class _Running:
    """One request's search and the sequences of its live beams, by rank."""

    def __init__(self, group: Group, search: Search) -> None:
        self.group = group
        self.search = search
        self.live = [group.sequences[0]]

    def offers(self) -> list[Offer] | None:
        """What may follow each live beam; None until all are computed."""
        found = [one.offer for one in self.live if one.state is State.RUNNING and not one.todo]
        offers = [offer for offer in found if offer is not None]
        return offers if len(offers) == len(self.live) else None


class BeamSearches:
    """Those of a scheduler."""

    def __init__(self) -> None:
        self._running: list[_Running] = []

    def __bool__(self) -> bool:
        return bool(self._running)

    def add(self, group: Group) -> None:
        if group.search is not None:
            self._running.append(_Running(group, group.search))

    def clear(self) -> None:
        self._running.clear()

    def advance(self, scheduler: Scheduler, now: float) -> list[Update]:
        """Let every search whose beams are all on offer go on; the ends of those that are over."""
        updates: list[Update] = []
        for one in self._running:
            offers = None if one.group.done else one.offers()
            if offers is None:
                continue
            if one.search.advance(offers):
                _place(scheduler, one)
            else:
                updates += _end(scheduler, one, now)
        self._running = [one for one in self._running if not one.group.done]
        return updates


def take_offer(sequence: Sequence, search: Search, result: StepResult, sample: int) -> None:
    """Note what a step found may come behind a beam."""
    width = search.alternatives
    ids, logprobs = result.top_ids[sample, :width], result.top_logprobs[sample, :width]
    sequence.offer = Offer(ids.tolist(), logprobs.tolist())


def _place(scheduler: Scheduler, one: _Running) -> None:
    """Give each live beam its sequence: its parent's, or a new one in a place that is free."""
    parents, beams = one.live, one.search.live
    parents[0].followers = []
    continued = {beam.parent for beam in beams}
    for rank, parent in enumerate(parents):
        if rank not in continued:
            _rest(scheduler, parent)
    free = [each for each in one.group.sequences if each.state is State.HELD]
    heirs: list[Sequence] = []
    for beam in beams:
        parent = parents[beam.parent]
        taken = beam.parent not in continued
        continued.discard(beam.parent)
        heirs.append(_twin(scheduler, parent, free.pop(0)) if taken else parent)
    for beam, heir in zip(beams, heirs, strict=True):
        assert beam.trail is not None
        heir.append(beam.trail.token)
        heir.offer = None
    one.live = heirs


def _rest(scheduler: Scheduler, sequence: Sequence) -> None:
    """Nobody continues it: its place is free, with its slot."""
    scheduler.running.remove(sequence)
    assert sequence.table is not None
    scheduler.kv.release(sequence.table)
    sequence.table = sequence.offer = sequence.constraint = None
    sequence.state = State.HELD


def _twin(scheduler: Scheduler, parent: Sequence, place: Sequence) -> Sequence:
    """A new sequence in the place of one at rest, with the parent's tokens and blocks. New, so that whoever keeps
    something by sequence (sampling parameters, a grammar's state) learns that it is another."""
    assert parent.table is not None
    twin = Sequence(parent.group, place.index)
    twin.slot, place.slot = place.slot, NO_SLOT
    twin.tokens = parent.tokens.copy()
    twin.known, twin.computed, twin.peak, twin.scored = parent.known, parent.computed, parent.computed, parent.scored
    twin.first_token, twin.preemptions = parent.first_token, parent.preemptions
    twin.table = scheduler.kv.fork(parent.table, parent.computed)
    twin.state = State.RUNNING
    parent.group.sequences[place.index] = twin
    insort(scheduler.running, twin, key=Sequence.order)
    return twin


def _end(scheduler: Scheduler, one: _Running, now: float) -> list[Update]:
    """The search is over: choice i is the answer of rank i; a choice without one ends without tokens."""
    updates = []
    first_token = one.live[0].first_token
    for rank, sequence in enumerate(one.group.sequences):
        found = one.search.finished[rank] if rank < len(one.search.finished) else None
        sequence.first_token = first_token
        reason = FinishReason.STOP if found is None else found.reason
        scheduler.finish(sequence, reason, now)
        updates.append(Update(sequence, None, -1, reason, None, found))
    return updates
