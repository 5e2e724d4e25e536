"""The waiting requests of one tenant and one class: earliest deadline first, then arrival.

A heap from which requests may also be taken anywhere: those are passed over when they surface, and swept out when
they are many. Owns this order only.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from math import inf

from tailrace.control.ticket import Ticket

Key = tuple[float, float, int]  # deadline, arrival, serial number: smaller goes first
_SWEEP = 64  # gone requests that may stay, besides half of the heap


class Place:
    """One waiting request. `cost`: expected standard device-seconds, of which `prefill` are the prompt's. `passed`: the
    cost of others that started while it was first and did not fit."""

    __slots__ = ("cost", "here", "id", "key", "passed", "prefill", "ticket")

    def __init__(self, request_id: str, ticket: Ticket, serial: int) -> None:
        self.id = request_id
        self.ticket = ticket
        self.key: Key = (inf if ticket.deadline is None else ticket.deadline, ticket.arrival, serial)
        self.here = False
        self.passed = 0.0
        self.cost = ticket.estimate.seconds
        self.prefill = ticket.estimate.prefill_seconds


class Line:
    """`listed` and `version` belong to the lane that holds the line."""

    __slots__ = ("_heap", "listed", "prefill", "seconds", "version", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self.seconds = 0.0  # expected cost of all that waits
        self.prefill = 0.0  # its prompts' part
        self.version = 0
        self.listed = False
        self._heap: list[tuple[Key, Place]] = []

    def push(self, place: Place) -> None:
        assert not place.here
        place.here = True
        heappush(self._heap, (place.key, place))
        self.waiting += 1
        self.seconds += place.cost
        self.prefill += place.prefill

    def first(self) -> Place:
        """Of a line that is not empty."""
        while not self._heap[0][1].here:
            heappop(self._heap)
        return self._heap[0][1]

    def take(self, place: Place) -> None:
        """Out of the line, wherever it stands."""
        assert place.here
        place.here = False
        self.waiting -= 1
        self.seconds = self.seconds - place.cost if self.waiting else 0.0
        self.prefill = self.prefill - place.prefill if self.waiting else 0.0
        if self._heap[0][1] is place:
            heappop(self._heap)
        elif len(self._heap) > 2 * self.waiting + _SWEEP:
            self._heap = [item for item in self._heap if item[1].here]
            heapify(self._heap)

    def places(self) -> Iterator[Place]:
        """In no order."""
        return (place for _, place in self._heap if place.here)
