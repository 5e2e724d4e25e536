"""The way of a request through the serving plane: door, admission, queue, dispatch, one end.

Owns every waiting request and the count of running ones; a backend gets only what it can start soon. All of it runs
on the event loop, without locks: between two awaits the numbers here are consistent. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tailrace.backends.base import Backend
from tailrace.clock import Clock
from tailrace.config import ControlConfig
from tailrace.control.admission import Decision, Occupancy, Verdict, at_the_door, into_the_queue, refusal
from tailrace.control.classes import Band, Rules, Subject, classify
from tailrace.control.dispatch import Dispatch
from tailrace.control.drain_rate import DrainRate
from tailrace.control.estimate import Estimate
from tailrace.control.lengths import AnswerKind
from tailrace.control.run import Run
from tailrace.control.ticket import Ticket
from tailrace.errors import TailraceError, Unavailable
from tailrace.observe.metrics import Metrics
from tailrace.observe.timeline import Phase, Timeline
from tailrace.policy import DEFAULT_TENANT
from tailrace.types import GenerateRequest, Health, Traits
from tailrace.units import length_bucket

_DRAIN_RETRY = 5.0  # seconds after which another replica, or this one restarted, may take a refused request


class Place:
    """Places among the waiting requests, taken at the door. Given back one by one as requests are admitted, and the
    rest by `release`, which must be called in the end (it may be called twice)."""

    def __init__(self, pipeline: Pipeline, count: int) -> None:
        self._pipeline = pipeline
        self.left = count

    def take(self) -> None:
        assert self.left > 0, "more requests than places taken at the door"
        self.left -= 1
        self._pipeline.held -= 1

    def release(self) -> None:
        self._pipeline.held -= self.left
        self.left = 0
        self._pipeline.settle()


class Pipeline:
    def __init__(self, backend: Backend, config: ControlConfig, clock: Clock, metrics: Metrics) -> None:
        self.backend = backend
        self.clock = clock
        self.metrics = metrics
        self.held = 0  # places taken at the door by requests that are not yet in the queue
        self._config = config
        self.dispatch = Dispatch(backend, clock)
        self._rate = DrainRate()
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        metrics.watch(lambda: self.running, lambda: self.waiting, backend.load)

    @property
    def running(self) -> int:
        return len(self.dispatch.running)

    @property
    def waiting(self) -> int:
        """Requests past the door that have not started, wherever they are."""
        return self.held + len(self.dispatch.queue)

    @property
    def draining(self) -> bool:
        return self._draining

    async def health(self) -> Health:
        """Whether new work would be taken and make progress."""
        if self._draining:
            return Health(False, "draining")
        return await self.backend.health()

    # --- the way in

    def look(self) -> None:
        """Refuse what the door would refuse, without taking a place: before a body is read. Raises as `door`."""
        self._allow(at_the_door(1, self._occupancy(), self._config))

    def door(self, count: int = 1) -> Place:
        """Take `count` places before any work on the prompts. Raises QueueFull or Unavailable."""
        self._allow(at_the_door(count, self._occupancy(), self._config))
        self.held += count
        self._idle.clear()
        return Place(self, count)

    def admit(self, place: Place, requests: Sequence[GenerateRequest], timeline: Timeline) -> list[Run]:
        """Put the requests of one caller in the queue, and start what there is room for. All of them or none.

        Raises QueueFull or Unavailable. The caller owns the runs and must close each.
        """
        timeline.enter(Phase.CLASSIFY)
        kinds = [AnswerKind(DEFAULT_TENANT, "", request.model) for request in requests]
        estimates = [self.dispatch.estimator.estimate(*asked) for asked in zip(requests, kinds, strict=True)]
        timeline.enter(Phase.ADMISSION)
        tokens = sum(expected.prompt_tokens for expected in estimates)
        fits = self.dispatch.fits(estimates[0].prompt_tokens, estimates[0].sequences)
        decision = into_the_queue(tokens, fits, self._occupancy(), self._config)
        self._allow(decision)
        timeline.facts.update(uncached_estimate=sum(e.uncached_tokens for e in estimates), admission=decision)
        timeline.enter(Phase.WAIT)
        self._rate.busy(self.clock.now())
        asked = zip(requests, kinds, estimates, strict=True)
        runs = [Run(self, request, timeline, self._ticket(request, known), kind) for request, kind, known in asked]
        for run in runs:
            place.take()
            self.dispatch.push(run)
        self.dispatch.release()
        return runs

    # --- called by Run

    def leave(self, run: Run, *, completed: bool) -> None:
        """The one end of a run, wherever it is."""
        self.dispatch.leave(run)
        if completed:
            self._rate.completed(self.clock.now(), run.prompt_tokens)
        self.dispatch.release()
        self.settle()

    def settle(self) -> None:
        """Note when nothing is left to do."""
        if not (self.held or self.dispatch.queue or self.dispatch.running):
            self._rate.idle()
            self._idle.set()

    # --- stopping

    def begin_drain(self) -> None:
        """Take no new work from now on; what is here goes on."""
        self._draining = True

    async def drain(self, seconds: float) -> None:
        """Let all that is here finish for at most that long, then end the rest with Unavailable."""
        self.begin_drain()
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            await self.stop()

    async def stop(self) -> None:
        """End everything at once: each request gets its typed error."""
        self.begin_drain()
        error = Unavailable("The server is stopping", code="draining", retry_after=_DRAIN_RETRY)
        for run in [*self.dispatch.queue, *self.dispatch.running.values()]:
            run.fail(error)
        await self.backend.drain(0)

    # --- inside

    def _ticket(self, request: GenerateRequest, expected: Estimate) -> Ticket:
        subject = Subject(Traits(), expected.uncached_tokens, expected.output_mean)
        request_class = classify(subject, Rules()).request_class
        bucket, now = length_bucket(expected.prompt_tokens), self.clock.now()
        return Ticket(DEFAULT_TENANT, "", 1.0, Band.NORMAL, request_class, bucket, now, None, 0, expected)

    def _occupancy(self) -> Occupancy:
        """Nobody overtakes the head of the queue: while it waits there is room for nobody."""
        queue = self.dispatch.queue
        starts = 0 if queue else self.dispatch.room().starts
        return Occupancy(self.held, len(queue), queue.tokens, starts, self._draining)

    def _allow(self, decision: Decision) -> None:
        if decision.verdict is Verdict.ADMIT:
            return
        self.metrics.rejected(decision.reason)
        raise self._refusal(decision)

    def _refusal(self, decision: Decision) -> TailraceError:
        retry = _DRAIN_RETRY
        if not self._draining:
            now = self.clock.now()
            retry = max(self._rate.seconds_for(decision.lacking_requests, decision.lacking_tokens, now), 0.001)
        return refusal(decision, self._occupancy(), self._config, retry)
