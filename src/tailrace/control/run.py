"""One request on its way: waits to be released, then yields the backend's events, and ends exactly once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from tailrace.control.foresight import Prediction
from tailrace.control.intake import Prepared
from tailrace.control.limits.base import Amounts
from tailrace.control.limits.limiter import Hold, device_us
from tailrace.control.prices import Counts, cost
from tailrace.errors import Domain, InternalError, TailraceError, Unavailable
from tailrace.observe.timeline import Phase, Timeline
from tailrace.types import EngineFacts, FinishReason, TokenEvent

if TYPE_CHECKING:
    from tailrace.control.dispatch import Dispatch
    from tailrace.control.pipeline import Pipeline

log = logging.getLogger(__name__)

COUNTS = (  # what `Run.counts` gives
    "prompt_tokens", "cached_tokens", "completion_tokens", "preemptions", "recomputed_tokens", "kv_blocks", "device_us",
    "measured_us", "price",
)  # fmt: skip


class Run:
    """Made by `Pipeline.admit`. Await `released()`, iterate, and `close()` in the end, whatever happens."""

    def __init__(self, pipeline: Pipeline, lane: Dispatch, prepared: Prepared, timeline: Timeline, hold: Hold) -> None:
        """`lane`: where it waits and runs."""
        self.lane = lane
        self.request = request = prepared.request
        self.ticket = ticket = prepared.ticket
        self.kind = prepared.kind
        self.price = prepared.price
        self.hold = hold
        hold.measure = self.spent
        self.scopes: tuple[str, ...] = ()  # where it counts as waiting
        self.prediction: Prediction | None = None
        self.waits_since = ticket.arrival
        self.waits_until = inf
        self.started: float | None = None
        self.first_token: float | None = None
        self.device_seconds: float | None = None  # standard, once the backend has said
        self.measured_seconds = 0.0  # its part of what the steps took, once it has said
        self.device_us = 0  # what it was charged for, once it has ended
        self.cost = 0  # millionths of money that it was charged, once it has ended
        self.kv_blocks = 0  # that it held when it held most
        self.failed = False
        expected = ticket.estimate
        self.token_seconds = expected.decode_seconds / expected.sequences / max(expected.output_mean - 1.0, 1.0)
        self.expected_length = expected.output_mean  # of a choice, and the tokens it had when that was looked up
        self.looked_at = 0
        self.id = request.id
        self.sequences = request.n
        self.prompt_tokens = len(request.prompt)
        self.generated = 0
        self.longest = 0  # tokens of the choice that has most
        self.worst_gap = 0.0  # seconds, the longest without a new token once there was one
        self._last_token = 0.0  # when the last came
        self._made = [0] * request.n
        self._ends: list[FinishReason | None] = [None] * request.n
        self.cached_tokens = 0
        self.prefilled_tokens = 0  # of its prompt, once the backend has it
        self._pipeline = pipeline
        self._timeline = timeline
        self._open = set(range(request.n))
        self.open_choices = request.n
        self.begun = False  # whether the backend has it, so that its report counts it
        self.yields = request.background  # gives up its slots to whatever goes before it
        self._counted = (0, 0)  # preemptions and recomputed tokens that the metrics have
        self.waiting = True  # for the limits of its tenant, or for room
        self._released = asyncio.Event()
        self._error: TailraceError | None = None
        self._stream: AsyncIterator[Sequence[TokenEvent]] | None = None
        self._closed = False
        self._reader: asyncio.Task[Any] | None = None  # who awaits the backend's next events
        self._interrupted = False

    @property
    def tenant(self) -> str:
        return self.ticket.tenant

    def counts(self) -> tuple[int, ...]:
        """What it took so far, as COUNTS names it."""
        measured = round(self.measured_seconds * 1e6)
        tokens = (self.prefilled_tokens, self.cached_tokens, self.generated)
        return (*tokens, *self._counted, self.kv_blocks, self.device_us, measured, self.cost)

    def choices(self) -> Iterator[tuple[int, bool]]:
        """Tokens of each choice, and whether it ended by itself."""
        return ((made, end is FinishReason.STOP) for made, end in zip(self._made, self._ends, strict=True))

    def waits(self) -> None:
        """It is in the queue from now on."""
        self._timeline.enter(Phase.WAIT)

    def spent(self) -> Amounts:
        """What it has cost its caller so far. A prompt counts from its start on, a request also when it never starts.

        Device time is the backend's own count once it is known, and what was expected of as much until then.
        """
        if self.started is None or (self._closed and not self.begun):  # its backend has never heard of it
            return Amounts(self.hold.ask.exact.requests)
        seconds = self.device_seconds
        if seconds is None:
            seconds = self._prefill_spent() + self.token_seconds * max(self.generated - self.sequences, 0)
        device = device_us(seconds)
        money = cost(self.price, self._counts(device))
        requests, prompt = self.hold.ask.exact.requests, self.prompt_tokens
        return Amounts(requests, prompt, self.generated, device, 0, device, money, money)

    def _counts(self, device: int) -> Counts:
        """What was cached is as expected until the backend has said."""
        expected = self.ticket.estimate
        cached = self.cached_tokens if self.prefilled_tokens else self.prompt_tokens - expected.uncached_tokens
        return Counts(device, self.prompt_tokens - cached, cached, self.generated)

    def _prefill_spent(self) -> float:
        """All of it once a token is there; before, what a prompt can have taken in that time."""
        expected = self.ticket.estimate.prefill_seconds
        if self.generated or self.started is None:
            return expected
        return min(expected, max(self._pipeline.clock.now() - self.started, 0.0))

    def release(self) -> None:
        """Called by the pipeline: there is room now."""
        self._timeline.enter(Phase.ROUTE)
        self._pipeline.started(self)
        self._wake()

    def fail(self, error: TailraceError) -> None:
        """End it with this error now, whether it waits or runs, and whether or not its backend still answers."""
        self._error = error
        self._pipeline.withdraw(self)
        self._wake()
        if self._reader is not None and not self._interrupted:
            self._interrupted = True
            self._reader.cancel()

    def _wake(self) -> None:
        self.waiting = False
        self._released.set()

    async def released(self) -> None:
        """Wait for room. Raises Unavailable when the server stops first."""
        if self.waiting:
            await self._released.wait()
        if self._error is not None:
            raise self._error

    def __aiter__(self) -> Run:
        return self

    async def __anext__(self) -> Sequence[TokenEvent]:
        """The backend's next events, those of a step together, until every choice has finished.

        Raises the request's own error when a choice ends with ERROR or ABORT; backend faults become InternalError.
        """
        if not self._open:
            raise StopAsyncIteration
        try:
            batch = await self._next()
        except TailraceError:
            raise
        except StopAsyncIteration:
            log.error("request %s: the backend ended with choices %s unfinished", self.id, sorted(self._open))
            raise _internal() from None
        except Exception as error:
            log.exception("request %s: the backend failed", self.id)
            raise _internal() from error
        self._note(batch)
        return batch

    async def _next(self) -> Sequence[TokenEvent]:
        """The backend's next events; the error of `fail` in the place of the cancellation it sends."""
        stream = self._stream or await self._started()
        self._reader = asyncio.current_task()
        assert self._reader is not None
        try:
            return await anext(stream)
        except asyncio.CancelledError:
            if self._interrupted and self._reader.uncancel() == 0:
                assert self._error is not None
                raise self._error from None
            raise
        finally:
            self._reader = None

    async def _started(self) -> AsyncIterator[Sequence[TokenEvent]]:
        await self.released()
        self._timeline.enter(Phase.QUEUE)
        self._timeline.enter(Phase.PREFILL)  # until the backend says when it began
        self._stream = self.lane.backend.generate(self.request)
        self.begun = True
        return self._stream

    async def close(self) -> None:
        """Give back whatever is held; stops the backend's work when it is not done. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        completed = not self._open
        try:
            await self._stop_backend()
        finally:
            self._pipeline.leave(self, completed=completed)

    async def _stop_backend(self) -> None:
        aclose = getattr(self._stream, "aclose", None)
        try:
            if aclose is not None:
                await aclose()
        except Exception:
            log.exception("request %s: the backend failed while it was stopped", self.id)

    def _note(self, batch: Sequence[TokenEvent]) -> None:
        """Count and time a step's events; raises for a choice that failed."""
        made = 0
        for event in batch:
            made += len(event.token_ids)
            self._made[event.index] += len(event.token_ids)
            if event.cached_tokens is not None and event.index == 0:
                self.cached_tokens, self.prefilled_tokens = event.cached_tokens, self.prompt_tokens
                self._pipeline.metrics.prefilled(self.prompt_tokens, event.cached_tokens)
            if event.finish is not None:
                self._finish(event)
        if made:
            self.generated += made
            self.longest = max(self._made)
            self.lane.served(self, made)
            if self.generated > self.hold.room:
                self.hold.spend(self.spent())
            self._time(self._pipeline.clock.now())
            self._pipeline.metrics.tokens(made)
            self._timeline.enter(Phase.DECODE)

    def _time(self, now: float) -> None:
        """There are new tokens."""
        if self.first_token is None:
            self.first_token = now
        elif now - self._last_token > self.worst_gap:
            self.worst_gap = now - self._last_token
        self._last_token = now

    def _finish(self, event: TokenEvent) -> None:
        assert event.index in self._open, f"choice {event.index} of {self.id} finished twice"
        self._open.discard(event.index)
        self.open_choices -= 1
        self._ends[event.index] = event.finish
        self.failed |= event.finish in (FinishReason.ERROR, FinishReason.ABORT)
        if event.facts is not None:
            self._learn(event.facts)
            facts = self._timeline.facts
            self._timeline.learn(event.facts, first="learned" not in facts)
            facts["learned"] = True
            self._count(event.facts)
        if event.finish is FinishReason.ERROR:
            raise _own_error(event.error, self.id)
        if event.finish is FinishReason.ABORT:
            raise self._error or _aborted()

    def _count(self, facts: EngineFacts) -> None:
        """Every choice brings what became of the whole request so far: count what is new."""
        before, self._counted = self._counted, (facts.preemptions, facts.recomputed_tokens)
        self._pipeline.metrics.preempted(facts.preemptions - before[0], facts.recomputed_tokens - before[1])

    def _learn(self, facts: EngineFacts) -> None:
        if facts.first_token is not None:
            self.first_token = min(facts.first_token, self.first_token or facts.first_token)
        if facts.standard_seconds is not None:
            self.device_seconds = max(facts.standard_seconds, self.device_seconds or 0.0)
        self.measured_seconds = max(self.measured_seconds, facts.measured_seconds or 0.0)
        self.kv_blocks = max(self.kv_blocks, facts.kv_blocks)


def _own_error(error: Exception | None, request_id: str) -> TailraceError:
    """What the caller is told: a typed error as it is, anything else without its insides."""
    if isinstance(error, TailraceError):
        return error
    log.error("request %s failed in the backend", request_id, exc_info=error)
    return _internal()


def _aborted() -> Unavailable:
    return Unavailable("The request was ended by the server", code="aborted", domain=Domain.EXECUTION)


def _internal() -> InternalError:
    return InternalError("The request could not be completed because of an internal error")
