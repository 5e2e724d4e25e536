"""Where requests wait, and in which order they start. Replaces first in, first out by the order of docs/decisions.

    bands, the first strictly before the second, but for a small guaranteed share of each that waits below
      tenants of a band, by what they were served over their weight (turns.py)
        requests of a tenant, earliest deadline first, then arrival (line.py)

Charged in standard device-seconds: the expected prefill at the start, decode as it is served, the difference to what
it really took at the end. Every operation is O(log n) in the waiting requests, and the order depends on the calls and
their numbers alone.

A request whose turn it is and that does not fit keeps its turn. Others may pass it, so that the machine is not idle,
as long as all that passed cost no more than `patience` times the request itself; then nobody passes, room collects,
and it starts. So a large request is late by at most its own length, and blocks others only until it fits.

Owns the order and the accounts. How many may wait is admission's decision, what fits is the backend's room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from tailrace.control.coming import Coming, Flow
from tailrace.control.line import Place
from tailrace.control.ticket import Ticket
from tailrace.control.turns import Turns
from tailrace.control.work_ahead import NOTHING, Ahead, crowd, work_ahead
from tailrace.frozen import frozen


class Waiting(Protocol):
    """What the order looks at."""

    @property
    def id(self) -> str: ...
    @property
    def sequences(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def ticket(self) -> Ticket: ...


W = TypeVar("W", bound=Waiting)


@frozen
class QueueRules:
    """`shares`: part of what is served that a lower band gets while it waits, by band; `share` for those not named.
    `class_sequences`: most sequences of a class that run at once; no bound for a class that is not named."""

    share: float = 0.02
    shares: Mapping[int, float] = field(default_factory=dict)
    class_sequences: Mapping[str, int] = field(default_factory=dict)
    patience: float = 1.0
    look: int = 8  # requests tried in one go, behind one that does not fit


@dataclass(slots=True)
class _Bill:
    """What a started request was charged so far, and what its answer is expected to be charged yet."""

    ticket: Ticket
    charged: float
    left: float


class FairQueue(Generic[W]):
    """`tokens` is the sum of prompt tokens of all that wait."""

    def __init__(self, rules: QueueRules | None = None) -> None:
        self.rules = rules or QueueRules()
        self.tokens = 0
        self.running: Counter[str] = Counter()  # sequences started and not ended, by class
        self._entries: dict[str, tuple[W, Place]] = {}
        self._bands: dict[int, Turns] = {}
        self._credit: dict[int, float] = {}  # guaranteed and not yet served, of bands that wait below another
        self._bills: dict[str, _Bill] = {}
        self._coming = Coming()
        self._serial = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[W]:
        """In the order in which they would start if all fitted and cost what is expected; without the guaranteed
        shares of lower bands."""
        for band in sorted(self._bands):
            for place in self._bands[band].order():
                yield self._entries[place.id][0]

    # --- waiting

    def push(self, entry: W) -> None:
        assert entry.id not in self._entries, entry.id
        place = Place(entry.id, entry.ticket, self._serial)
        self._serial += 1
        self._entries[entry.id] = (entry, place)
        band = entry.ticket.band
        turns = self._bands.get(band)
        if turns is None:
            turns = self._bands[band] = Turns()
        turns.push(place)
        self._coming.add(entry.ticket, place.cost)
        self.tokens += entry.prompt_tokens

    def remove(self, entry: W) -> bool:
        """Take an entry out wherever it stands; False when it is not here."""
        found = self._entries.get(entry.id)
        if found is None:
            return False
        self._take(found[1])
        self._close(found[1].ticket)
        return True

    def pop_ready(self, fits: Callable[[W], bool], held: frozenset[str] = frozenset()) -> W | None:
        """The next entry that may start now. It is charged its expected prefill, and owed an `ended`. The tenants in
        `held` start nothing and keep nobody waiting."""
        aside: list[Place] = []
        place = self._find(fits, aside, held)
        for other in aside:
            self._bands[other.ticket.band].push(other, again=True)
        if place is None:
            return None
        entry = self._entries[place.id][0]
        self._start(place, aside)
        return entry

    def work_ahead(self, ticket: Ticket) -> Ahead:
        """What is expected to be served before a request with this ticket, whether it waits here or would come now."""
        if not self._entries:
            return NOTHING
        return work_ahead(ticket, self._bands, self._coming, self.rules.share)

    def crowd(self, ticket: Ticket) -> float:
        """By how much slower than the machine its tenant is served while those wait who wait now."""
        return crowd(ticket, self._bands)

    def coming(self, now: float) -> list[Flow]:
        """What is expected to arrive, by the requests of the last half minute."""
        return self._coming.flows(now)

    def waits_only(self, tenants: frozenset[str]) -> bool:
        """Whether nobody else waits."""
        return all(name in tenants for turns in self._bands.values() for name, _ in turns.backlogged())

    @property
    def tenants(self) -> int:
        """How many wait; one that waits in two bands counts twice."""
        return sum(turns.tenants_waiting for turns in self._bands.values())

    def waits(self, tenant: str) -> bool:
        return any(turns.waits(tenant) for turns in self._bands.values())

    def passes(self, tenants: frozenset[str]) -> bool:
        """Whether somebody else has come to wait lately in a band of theirs, whose turn it is if they start nothing."""
        return any(
            turns.passes(self._closed, tenants) for turns in self._bands.values() if any(map(turns.waits, tenants))
        )

    # --- started

    def served(self, entry: W, seconds: float) -> None:
        """Part of its answer has been made."""
        bill = self._bills[entry.id]
        bill.charged += seconds
        self._bands[bill.ticket.band].charge(bill.ticket.tenant, seconds)
        self._pay(bill, seconds)

    def ended(self, entry: W, seconds: float | None = None) -> None:
        """The end of a started entry, with what it cost in all (None: what was charged so far)."""
        bill = self._bills.pop(entry.id)
        ticket = bill.ticket
        self._pay(bill, bill.left)
        if seconds is not None:
            self._bands[ticket.band].charge(ticket.tenant, seconds - bill.charged)
        self.running[ticket.request_class] -= ticket.estimate.sequences
        self._close(ticket)

    # --- inside

    def _find(self, fits: Callable[[W], bool], aside: list[Place], held: frozenset[str]) -> Place | None:
        """The first that may start and fits; those before it are left `aside`, out of the order."""
        if len(self._entries) == 1:  # as for most, which come when nobody waits
            ((entry, only),) = self._entries.values()
            ticket = entry.ticket
            may = ticket.tenant not in held and not self._closed(ticket.request_class)
            return only if may and fits(entry) else None
        for _ in range(self.rules.look):
            place = self._first(held)
            if place is None:
                return None
            if self._may_pass(place, aside) and fits(self._entries[place.id][0]):
                return place
            if place.passed >= self.rules.patience * place.cost:
                return None
            aside.append(place)
            self._bands[place.ticket.band].take(place, again=True)
        return None

    def _first(self, held: frozenset[str]) -> Place | None:
        """The request whose turn it is: a lower band's when it has earned it, else the highest band's."""
        top: Place | None = None
        for band in sorted(self._bands):
            place = self._bands[band].first(self._closed, held)
            if place is None:
                continue
            if top is None:
                top = place
            elif self._credit.get(band, 0.0) >= place.cost:
                return place
        return top

    def _closed(self, request_class: str) -> bool:
        most = self.rules.class_sequences.get(request_class)
        return most is not None and self.running[request_class] >= most

    def _may_pass(self, place: Place, aside: list[Place]) -> bool:
        patience = self.rules.patience
        return all(other.passed + place.cost <= patience * other.cost for other in aside)

    def _start(self, place: Place, aside: list[Place]) -> None:
        for other in aside:
            other.passed += place.cost
        ticket, expected = place.ticket, place.ticket.estimate.prefill_seconds
        self._earn(ticket.band, place.cost)
        self._take(place)
        self._bands[ticket.band].charge(ticket.tenant, expected)
        self._bills[place.id] = _Bill(ticket, expected, ticket.estimate.decode_seconds)
        self._bands[ticket.band].owe(ticket.tenant, ticket.estimate.decode_seconds)
        self.running[ticket.request_class] += ticket.estimate.sequences

    def _pay(self, bill: _Bill, seconds: float) -> None:
        paid = min(seconds, bill.left)
        bill.left -= paid
        self._bands[bill.ticket.band].owe(bill.ticket.tenant, -paid)

    def _earn(self, served: int, cost: float) -> None:
        """Every band that waits below the one served earns its share; what is served by credit is paid from it."""
        for band, turns in self._bands.items():
            if band > served and turns.waiting:
                share = self.rules.shares.get(band, self.rules.share)
                self._credit[band] = self._credit.get(band, 0.0) + cost * share / (1.0 - share)
        if served in self._credit:
            self._credit[served] = max(self._credit[served] - cost, 0.0)

    def _take(self, place: Place) -> None:
        """Out of the order for good."""
        entry, _ = self._entries.pop(place.id)
        turns = self._bands[place.ticket.band]
        turns.take(place)
        self.tokens -= entry.prompt_tokens
        if not turns.waiting:
            self._credit.pop(place.ticket.band, None)

    def _close(self, ticket: Ticket) -> None:
        self._bands[ticket.band].close(ticket.tenant)
