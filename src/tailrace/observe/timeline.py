"""One request's record, from the socket to its one end: when each phase began, and facts.

Phases partition the interval, so their lengths add up to it exactly (whole microseconds). The answer's `timings`,
the metrics and every later report derive from this record, so they cannot disagree. It judges nothing.
"""

from __future__ import annotations

from enum import StrEnum

from tailrace.clock import Clock
from tailrace.errors import TailraceError
from tailrace.types import EngineFacts


class Phase(StrEnum):
    """In the order in which a request passes them; one that is skipped has length zero."""

    INGRESS = "ingress"  # reading and checking the body, authentication
    LOAD = "load"  # waiting for the model to be loaded
    RENDER = "render"  # chat template and tokenizer
    CLASSIFY = "classify"
    ADMISSION = "admission"
    LIMIT = "limit"  # waiting for the tenant's own limits
    WAIT = "wait"  # in control's queue
    ROUTE = "route"
    QUEUE = "queue"  # in the backend, before its first step
    PREFILL = "prefill"
    DECODE = "decode"
    POST = "post"  # from the last token to the end of the answer

    __hash__ = str.__hash__  # an enum's own is written in Python, and each request asks for it a hundred times


_ORDER = tuple(Phase)
WAITING = (Phase.LOAD, Phase.CLASSIFY, Phase.ADMISSION, Phase.LIMIT, Phase.WAIT, Phase.ROUTE, Phase.QUEUE)  # `queue_ms`


class Timeline:
    """Opened on construction, closed once. Several backend requests of one HTTP request share it: a phase begins
    when the first of them enters it, and the last token is that of the last of them."""

    __slots__ = ("_clock", "_end", "_opened", "_parts", "_starts", "facts", "opened", "outcome")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._opened = _microseconds(clock.now())
        self.opened = self._opened / 1e6  # when the socket delivered the request, on the clock
        self._starts: dict[Phase, float] = {}  # on the clock; rounded when somebody asks
        self._end: int | None = None
        self._parts: dict[Phase, int] | None = None  # once nothing changes any more
        self.outcome: str | None = None
        self.facts: dict[str, object] = {}

    def enter(self, phase: Phase) -> None:
        """The phase begins now, unless it has begun before."""
        if phase not in self._starts:
            self._starts[phase] = self._clock.now()

    def cut(self, phase: Phase, at: float) -> None:
        """The phase began at `at` on the clock, whatever was noted before. Out-of-order times are clamped."""
        self._starts[phase] = at

    def learn(self, facts: EngineFacts, *, first: bool) -> None:
        """Place the backend's phases where it says they began. `first`: nothing was learned from an earlier choice."""
        self._earliest(Phase.PREFILL, facts.started, first)
        self._earliest(Phase.DECODE, facts.first_token, first)
        post = facts.finished
        self._starts[Phase.POST] = post if first else max(post, self._starts[Phase.POST])
        for name, count in (("drafted_tokens", facts.drafted_tokens), ("accepted_tokens", facts.accepted_tokens)):
            before = self.facts.get(name, 0)
            assert isinstance(before, int)
            self.facts[name] = before + count

    def failed(self, error: TailraceError) -> None:
        """Note why, for whoever reports it: what it says of itself, since an exception would keep all that it came
        through."""
        self.facts["error"] = error.code or error.type
        self.facts["error_domain"] = error.domain.value
        self.facts["error_kind"] = error.kind.value
        self.facts["error_about"] = {"param": error.param, **error.detail}

    def close(self, outcome: str) -> bool:
        """End the record; False when it had ended before (nothing changes then)."""
        if self._end is not None:
            return False
        self._end = _microseconds(self._clock.now())
        self.outcome = outcome
        return True

    def parts(self) -> dict[Phase, int]:
        """Microseconds of every phase so far; they add up to `total()` exactly."""
        if self._parts is not None:
            return self._parts
        parts = self._measured()
        self._parts = parts if self._end is not None else None
        return parts

    def _measured(self) -> dict[Phase, int]:
        """A phase lasts until the next one that was entered; those skipped take nothing."""
        end, parts = self._now(), dict.fromkeys(_ORDER, 0)
        phase, since = Phase.INGRESS, self._opened
        for following in _ORDER[1:]:
            at = self._starts.get(following)
            if at is not None:
                begun = min(max(_microseconds(at), since), end)
                parts[phase] = begun - since
                phase, since = following, begun
        parts[phase] = end - since
        return parts

    def total(self) -> int:
        """Microseconds from the socket to now, or to the end."""
        return self._now() - self._opened

    def since_open(self, phase: Phase) -> int | None:
        """Microseconds from the socket to the begin of a phase; None when it was never entered."""
        start = self._starts.get(phase)
        return None if start is None else min(max(_microseconds(start), self._opened), self._now()) - self._opened

    def _earliest(self, phase: Phase, at: float | None, first: bool) -> None:
        if at is not None:
            self._starts[phase] = at if first else min(at, self._starts.get(phase, at))

    def _now(self) -> int:
        return self._end if self._end is not None else max(_microseconds(self._clock.now()), self._opened)


def _microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)
