"""Whose turn it is: the virtual counters by which the tenants of one band are served.

Fair queueing by served cost as in VTC (arXiv 2401.00588): the waiting tenant with the least counter goes next, and
what it gets, divided by its weight, moves its counter. A tenant that comes to wait is lifted to the least counter of
those that wait already or, where nobody waits, to that of the last one that did: idling earns no credit but to go
first among equals, and leaving for a moment forgives no debt. Owns counters and the order of tenants; sets no cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from math import inf

from tailrace.control.line import Line, Place

_AHEAD = 0.5  # standard device-seconds over weight, by which one that is held is passed
_IDLE_KEPT = 4096  # tenants remembered, before those that neither wait nor run nor owe are forgotten


class Account:
    """One tenant. `counter`: standard device-seconds over weight; `since`: what that was when it came to wait; `open`:
    its requests that have not ended; `owed`: seconds that its running answers are expected to be charged yet."""

    __slots__ = ("counter", "lines", "open", "owed", "rank", "since", "tenant", "waiting", "weight")

    def __init__(self, tenant: str, rank: int) -> None:
        self.tenant = tenant
        self.rank = rank  # breaks ties: who was raised last, then order of appearance
        self.counter = self.since = 0.0
        self.owed = 0.0
        self.weight = 1.0
        self.waiting = 0
        self.open = 0
        self.lines: dict[str, Line] = {}

    @property
    def coming(self) -> float:
        """What the counter will be once its running answers are paid for."""
        return self.counter + max(self.owed, 0.0) / self.weight

    @property
    def seconds(self) -> float:
        """Expected cost of all that waits."""
        return sum(line.seconds for line in self.lines.values())

    @property
    def prefill(self) -> float:
        """Its prompts' part."""
        return sum(line.prefill for line in self.lines.values())


class _Lane:
    """The lines of one class by their tenants' counters. A counter that rose is noticed when its line surfaces."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, Account, Line]] = []
        self._stale = 0  # items of an older version

    def enlist(self, account: Account, line: Line) -> None:
        line.listed = True
        heappush(self._heap, (account.counter, account.rank, line.version, account, line))

    def best_but(self, held: frozenset[str]) -> tuple[Account, Line] | None:
        """Of the tenants that are not held, passing over the others' lines."""
        aside = []
        while (found := self.best()) is not None and found[0].tenant in held:
            aside.append(heappop(self._heap))
        for item in aside:
            heappush(self._heap, item)
        return found

    def best(self) -> tuple[Account, Line] | None:
        heap = self._heap
        while heap:
            counter, rank, version, account, line = heap[0]
            if version != line.version:
                heappop(heap)
                self._stale -= 1
            elif not line.waiting:
                heappop(heap)
                line.listed = False
            elif counter < account.counter:
                heapreplace(heap, (account.counter, rank, version, account, line))
            else:
                return account, line
        return None

    def fell(self, account: Account, line: Line) -> None:
        """The counter went down."""
        if not line.listed:
            return
        line.version += 1
        self._stale += 1
        self.enlist(account, line)
        if self._stale > 64 + len(self._heap) // 2:
            self._heap = [item for item in self._heap if item[2] == item[4].version]
            self._stale = 0
            heapify(self._heap)


class Turns:
    """The tenants of one band."""

    def __init__(self) -> None:
        self.waiting = 0  # requests
        self.seconds = 0.0  # their expected cost
        self.prefill = 0.0  # their prompts' part
        self._accounts: dict[str, Account] = {}
        self._backlogged: dict[str, Account] = {}
        self._lanes: dict[str, _Lane] = {}
        self._last: Account | None = None  # who stopped waiting last
        self._ranks = self._raised = 0

    def backlogged(self) -> Iterator[tuple[str, Account]]:
        """Tenants that wait, in no order."""
        return iter(self._backlogged.items())

    @property
    def tenants_waiting(self) -> int:
        return len(self._backlogged)

    def entry_counter(self, tenant: str) -> float:
        """The counter that a request of this tenant would wait with."""
        account = self._accounts.get(tenant)
        own = 0.0 if account is None else account.counter
        return own if account is not None and account.waiting else max(own, self._floor() or 0.0)

    def waits(self, tenant: str) -> bool:
        return tenant in self._backlogged

    def passes(self, closed: Callable[[str], bool], held: frozenset[str]) -> bool:
        """Whether one whose turn it is if those that are `held` start nothing has come to wait lately: it was served
        little since."""
        place = self.first(closed, held)
        if place is None:
            return False
        account = self._accounts[place.ticket.tenant]
        return account.counter - account.since <= _AHEAD

    def find(self, tenant: str) -> Account | None:
        return self._accounts.get(tenant)

    def push(self, place: Place, *, again: bool = False) -> None:
        """`again`: it was taken out for a moment, which is no coming and going."""
        ticket = place.ticket
        account = self._account(ticket.tenant)
        account.weight = ticket.weight
        if not account.waiting:
            if not again:
                self._lift(account)
                account.since = account.counter
            self._backlogged[ticket.tenant] = account  # others of it may have started meanwhile, the last of them
        line = account.lines.get(ticket.request_class)
        if line is None:
            line = account.lines[ticket.request_class] = Line()
        line.push(place)
        account.waiting += 1
        account.open += not again
        self.waiting += 1
        self.seconds += place.cost
        self.prefill += place.prefill
        if not line.listed:
            lane = self._lanes.get(ticket.request_class)
            if lane is None:
                lane = self._lanes[ticket.request_class] = _Lane()
            lane.enlist(account, line)

    def first(self, closed: Callable[[str], bool], held: frozenset[str] = frozenset()) -> Place | None:
        """The request whose turn it is, of the classes that are not closed and the tenants that are not held; those are
        not passed by more than a little, so that both that wait are served by cost and not by places."""
        best: tuple[float, int, tuple[float, float, int]] | None = None
        chosen: Place | None = None
        for request_class, lane in self._lanes.items():
            found = None if closed(request_class) else lane.best_but(held)
            if found is None:
                continue
            place = found[1].first()
            key = (found[0].counter, found[0].rank, place.key)
            if best is None or key < best:
                best, chosen = key, place
        if best is not None and best[0] > self._least(held) + _AHEAD:
            return None
        return chosen

    def _least(self, held: frozenset[str]) -> float:
        """Counter among the tenants of them that wait."""
        return min((self._backlogged[name].counter for name in held if name in self._backlogged), default=inf)

    def order(self) -> Iterator[Place]:
        """In the order in which they would start if all fitted and cost what is expected."""
        turns = []
        for account in self._backlogged.values():
            places = sorted((p for line in account.lines.values() for p in line.places()), key=lambda p: p.key)
            if places:
                turns.append((account.counter, account.rank, account.weight, places[::-1]))
        heapify(turns)
        while turns:
            counter, rank, weight, places = turns[0]
            place = places.pop()
            yield place
            if places:
                heapreplace(turns, (counter + place.cost / weight, rank, weight, places))
            else:
                heappop(turns)

    def take(self, place: Place, *, again: bool = False) -> None:
        """Out of its line; `again`: it comes back at once. It stays open until `close`."""
        account = self._accounts[place.ticket.tenant]
        account.lines[place.ticket.request_class].take(place)
        account.waiting -= 1
        self.waiting -= 1
        self.seconds = self.seconds - place.cost if self.waiting else 0.0
        self.prefill = self.prefill - place.prefill if self.waiting else 0.0
        if not account.waiting and not again:
            self._last = account
            del self._backlogged[place.ticket.tenant]

    def close(self, tenant: str) -> None:
        """One of its requests has ended."""
        self._accounts[tenant].open -= 1

    def charge(self, tenant: str, seconds: float) -> None:
        """Served; negative when too much was charged before."""
        account = self._accounts[tenant]
        account.counter += seconds / account.weight
        if seconds < 0:
            for request_class, line in account.lines.items():
                self._lanes[request_class].fell(account, line)

    def owe(self, tenant: str, seconds: float) -> None:
        """Of a running answer; negative when it was charged, or will not be."""
        self._accounts[tenant].owed += seconds

    def _account(self, tenant: str) -> Account:
        account = self._accounts.get(tenant)
        if account is None:
            if len(self._accounts) >= _IDLE_KEPT:
                self._forget()
            account = self._accounts[tenant] = Account(tenant, self._ranks)
            self._ranks += 1
        return account

    def _lift(self, account: Account) -> None:
        floor = self._floor()
        if floor is not None and floor > account.counter:
            account.counter = floor
            self._raised -= 1
            account.rank = self._raised

    def _floor(self) -> float | None:
        counters = [found[0].counter for lane in self._lanes.values() if (found := lane.best()) is not None]
        if counters:
            return min(counters)
        return None if self._last is None else self._last.counter

    def _forget(self) -> None:
        """Drop who would be lifted to the floor anyway."""
        floor = self._floor() or 0.0
        for tenant, account in list(self._accounts.items()):
            if not account.open and account.counter <= floor and account is not self._last:
                del self._accounts[tenant]
