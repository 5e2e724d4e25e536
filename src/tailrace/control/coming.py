"""What keeps arriving: requests a second of each band and class, and their usual sizes. Averages of the last half
minute, by which predictions count what will come while a request waits or its prompt is computed. Decides nothing."""

from __future__ import annotations

from math import exp

from tailrace.control.step_share import prompt_of
from tailrace.control.ticket import Ticket
from tailrace.frozen import frozen
from tailrace.types import Prefill

_MEMORY = 30.0  # seconds over which arrivals are averaged
_RARE = 1e-3  # requests a second that are not worth a thought


@frozen
class Flow:
    """Requests like one another: `rate` a second, their mean prompt, and tokens of their mean answer."""

    rate: float
    prompt: Prefill
    output: float


class Coming:
    def __init__(self) -> None:
        self._streams: dict[tuple[int, str], _Stream] = {}

    def add(self, ticket: Ticket, cost: float) -> None:
        """A request has come. `cost`: standard device-seconds, as its place in the order has it."""
        key = (ticket.band, ticket.request_class)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = _Stream()
        stream.add(ticket, cost)

    def flows(self, now: float) -> list[Flow]:
        return [flow for stream in self._streams.values() if (flow := stream.flow(now)).rate > _RARE]

    def seconds_before(self, band: int, now: float) -> float:
        """Standard device-seconds that arrive each second in the bands before this one."""
        return sum(stream.seconds(now) for key, stream in self._streams.items() if key[0] < band)


class _Stream:
    """Sums that fade. What else a prompt has is the last arrival's: with one tenant it is everybody's."""

    def __init__(self) -> None:
        self._count = self._todo = self._done = self._output = self._seconds = 0.0
        self._at = 0.0
        self._like = Prefill(0)  # its deadline: seconds from its arrival

    def add(self, ticket: Ticket, cost: float) -> None:
        expected, keep = ticket.estimate, self._faded(ticket.arrival)
        cached = expected.prompt_tokens - expected.uncached_tokens
        self._count = self._count * keep + 1.0
        self._todo = self._todo * keep + expected.uncached_tokens
        self._done = self._done * keep + cached
        self._output = self._output * keep + expected.output_mean * expected.sequences
        self._seconds = self._seconds * keep + cost
        self._at = max(ticket.arrival, self._at)
        prompt = prompt_of(ticket, 0)
        self._like = prompt._replace(deadline=prompt.deadline - ticket.arrival)

    def flow(self, now: float) -> Flow:
        todo, done = round(self._todo / self._count), round(self._done / self._count)
        prompt = self._like._replace(todo=max(todo, 1), done=done, deadline=now + self._like.deadline)
        return Flow(self._count * self._faded(now) / _MEMORY, prompt, self._output / self._count)

    def seconds(self, now: float) -> float:
        return self._seconds * self._faded(now) / _MEMORY

    def _faded(self, now: float) -> float:
        return exp(-max(now - self._at, 0.0) / _MEMORY)
