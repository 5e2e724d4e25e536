"""How much the fair order will serve before a request: the expectation that its place is worth. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from math import inf

from tailrace.control.coming import Coming
from tailrace.control.line import Key
from tailrace.control.ticket import Ticket
from tailrace.control.turns import Account, Turns
from tailrace.frozen import frozen

_LOOK = 512  # requests, or tenants, looked at one by one; the rest is taken to be alike
_MOST_PRESSURE = 0.9  # part of the machine that arrivals of higher bands can be expected to take for long


@frozen
class Ahead:
    """`seconds` standard device-seconds, `prefill` their prompts' part, `requests` how many (a mean, so not whole)."""

    seconds: float = 0.0
    prefill: float = 0.0
    requests: float = 0.0

    def __add__(self, other: Ahead) -> Ahead:
        return Ahead(self.seconds + other.seconds, self.prefill + other.prefill, self.requests + other.requests)

    def at(self, pace: float) -> Ahead:
        """In seconds of a machine that needs `pace` times the standard ones."""
        return Ahead(self.seconds * pace, self.prefill * pace, self.requests)

    def times(self, factor: float) -> Ahead:
        return Ahead(self.seconds * factor, self.prefill * factor, self.requests * factor)


NOTHING = Ahead()


def work_ahead(ticket: Ticket, bands: Mapping[int, Turns], coming: Coming, lower_share: float) -> Ahead:
    """Before a request with this ticket: one that waits already, or one that would come now.

    Its own tenant's earlier requests; of the others in its band what they get until its tenant's turn for it comes,
    counted as if running answers had been paid for;
    the higher bands' backlog and what will arrive there meanwhile; the share that lower bands are guaranteed.
    """
    turns = bands.get(ticket.band)
    total = NOTHING if turns is None else _in_band(ticket, turns)
    pressure = coming.seconds_before(ticket.band, ticket.arrival)
    for band, other in bands.items():
        if band < ticket.band:
            total += Ahead(other.seconds, other.prefill, other.waiting)
    lower = any(band > ticket.band and other.waiting for band, other in bands.items())
    pressure = min(pressure + (lower_share if lower else 0.0), _MOST_PRESSURE)
    return total.times(1.0 / (1.0 - pressure))


def crowd(ticket: Ticket, bands: Mapping[int, Turns]) -> float:
    """Weights of all tenants of its band that wait, its own among them, over its own."""
    turns = bands.get(ticket.band)
    if turns is None:
        return 1.0
    seen = [other.weight for name, other in islice(turns.backlogged(), _LOOK) if name != ticket.tenant]
    count = turns.tenants_waiting - turns.waits(ticket.tenant)
    return 1.0 + sum(seen) / max(len(seen), 1) * count / ticket.weight


def _in_band(ticket: Ticket, turns: Turns) -> Ahead:
    account = turns.find(ticket.tenant)
    own = NOTHING if account is None else _own(ticket, account)
    owed = 0.0 if account is None else account.owed
    counter = turns.entry_counter(ticket.tenant) + (own.seconds + owed) / ticket.weight
    return own + _others(ticket.tenant, counter, turns)


def _own(ticket: Ticket, account: Account) -> Ahead:
    key: Key = (inf if ticket.deadline is None else ticket.deadline, ticket.arrival, -1)
    seconds, prefill, requests, seen = 0.0, 0.0, 0, 0
    for line in account.lines.values():
        for place in islice(line.places(), _LOOK):
            seen += 1
            if place.key < key:
                seconds += place.cost
                prefill += place.prefill
                requests += 1
    return Ahead(seconds, prefill, requests).times(account.waiting / seen if seen else 0.0)


def _others(tenant: str, counter: float, turns: Turns) -> Ahead:
    """What other tenants are served until their counters pass `counter`."""
    total, seen = NOTHING, 0
    for name, other in islice(turns.backlogged(), _LOOK):
        if name == tenant:
            continue
        seen += 1
        allowed = max(counter - other.coming, 0.0) * other.weight
        seconds = other.seconds
        part = min(1.0, allowed / seconds) if seconds else 1.0
        total += Ahead(seconds, other.prefill, other.waiting).times(part)
    return total.times(max(turns.tenants_waiting - 1, seen) / seen) if seen > _LOOK // 2 else total
