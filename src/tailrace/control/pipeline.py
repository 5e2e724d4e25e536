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
from tailrace.control.drain_rate import DrainRate
from tailrace.control.estimate import Estimate, Estimator
from tailrace.control.lengths import AnswerKind
from tailrace.control.queue import FifoQueue
from tailrace.control.room import Given, Room, prompt_blocks, room
from tailrace.control.run import Run
from tailrace.errors import TailraceError, Unavailable
from tailrace.observe.metrics import Metrics
from tailrace.observe.timeline import Phase, Timeline
from tailrace.types import GenerateRequest, Health

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
        self._estimator = Estimator(backend)
        self._queue: FifoQueue[Run] = FifoQueue()
        self._running: dict[str, Run] = {}
        self._rate = DrainRate()
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        backend.on_room(self._release)
        metrics.watch(lambda: self.running, lambda: self.waiting, backend.load)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests past the door that have not started, wherever they are."""
        return self.held + len(self._queue)

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
        estimates = [
            self._estimator.estimate(request, AnswerKind("default", "", request.model)) for request in requests
        ]
        timeline.enter(Phase.ADMISSION)
        tokens = sum(expected.prompt_tokens for expected in estimates)
        fits = self._room().fits(estimates[0].sequences, estimates[0].prompt_tokens)
        decision = into_the_queue(tokens, fits, self._occupancy(), self._config)
        self._allow(decision)
        timeline.facts.update(uncached_estimate=sum(e.uncached_tokens for e in estimates), admission=decision)
        timeline.enter(Phase.WAIT)
        self._rate.busy(self.clock.now())
        runs = [Run(self, request, timeline) for request in requests]
        for run in runs:
            place.take()
            self._queue.push(run)
        self._release()
        return runs

    # --- called by Run

    def leave(self, run: Run, *, completed: bool) -> None:
        """The one end of a run, wherever it is."""
        if not self._queue.remove(run):
            self._running.pop(run.id, None)
        if completed:
            self._rate.completed(self.clock.now(), run.prompt_tokens)
        self._release()
        self.settle()

    def settle(self) -> None:
        """Note when nothing is left to do."""
        if not (self.held or self._queue or self._running):
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
        for run in [*self._queue, *self._running.values()]:
            run.fail(error)
        await self.backend.drain(0)

    # --- inside

    def _release(self) -> None:
        """Start what the backend has room for."""
        while self._queue and (run := self._queue.pop_ready(self._fits)) is not None:
            self._running[run.id] = run
            run.release()

    def _estimate(self, request: GenerateRequest) -> Estimate:
        return self._estimator.estimate(request, AnswerKind("", "", request.model))

    def _fits(self, run: Run) -> bool:
        return self._room().fits(run.sequences, run.prompt_tokens)

    def _room(self) -> Room:
        caps = self.backend.caps
        unseen = [run for run in self._running.values() if not run.begun]
        pledged = sum(prompt_blocks(run.prompt_tokens, caps.block_tokens) + run.sequences for run in unseen)
        return room(self.backend.load(), caps, Given(sum(run.sequences for run in unseen), pledged))

    def _occupancy(self) -> Occupancy:
        """Nobody overtakes the head of the queue: while it waits there is room for nobody."""
        starts = 0 if self._queue else self._room().starts
        return Occupancy(self.held, len(self._queue), self._queue.tokens, starts, self._draining)

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
