"""The way of a request through the serving plane: door, class, estimate, admission, limits, queue, one end.

Owns the counts of who waits and the decisions about who may; a `Dispatch` for each backend owns the queue and what runs
there: the fair order holds among those that want the same model. A backend gets only what it can start soon. All of it
runs on the event loop, without locks: between two awaits the numbers here are consistent. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence

from tailrace.backends.base import Backend
from tailrace.clock import Clock
from tailrace.config import Config, ControlConfig
from tailrace.control.admission import (
    Admit,
    AsJob,
    Decision,
    Forecast,
    Offer,
    Reject,
    Terms,
    There,
    at_the_door,
    into_the_queue,
    refusal,
)
from tailrace.control.backend_metrics import BackendMetrics
from tailrace.control.bounds import Bounds
from tailrace.control.come_back import ComeBack
from tailrace.control.dispatch import Dispatch
from tailrace.control.foresight import Prediction
from tailrace.control.intake import Caller, Intake, Prepared
from tailrace.control.lengths import LengthBook
from tailrace.control.limits.base import MICRO, LimitStore
from tailrace.control.limits.memory import MemoryLimits
from tailrace.control.own_limits import OwnLimits
from tailrace.control.plane_metrics import PlaneMetrics
from tailrace.control.promises import Visit
from tailrace.control.room import Room
from tailrace.control.run import Run
from tailrace.control.served import Served
from tailrace.control.tenants import Tenants
from tailrace.control.ticket import Ticket
from tailrace.control.together import together
from tailrace.control.waiting import ALL, Waiting, class_scope, tenant_scope
from tailrace.control.watchdog import Watchdog
from tailrace.errors import TailraceError, Unavailable
from tailrace.observe.metrics import Metrics
from tailrace.observe.timeline import Phase, Timeline
from tailrace.policy import DEFAULT_TENANT
from tailrace.types import GenerateRequest, Health, LoadReport

_PLACE_FREE, _STARTS_NOW = Admit("place_free"), Admit("starts_now")
_SURE = 0.9  # that a request which may wait starts by its class's queue deadline: else it waits in vain
_DRAIN_RETRY = 5.0  # seconds after which another replica, or this one restarted, may take a refused request


class Place:
    """Places among the waiting requests, taken at the door. Given back one by one as requests are admitted, and the
    rest by `release`, which must be called in the end (it may be called twice)."""

    def __init__(self, pipeline: Pipeline, tenant: str, count: int, tokens: int) -> None:
        self.tenant = tenant
        self.left = count
        self.tokens = tokens  # at the least, of all its prompts together
        self._pipeline = pipeline
        self._scopes = (ALL, tenant_scope(tenant))
        pipeline.waiters.add(self._scopes, count, tokens)

    def take(self) -> None:
        assert self.left > 0, "more requests than places taken at the door"
        self._give_back(1)

    def release(self) -> None:
        if self.left:
            self._give_back(self.left)
            self._pipeline.settle()

    def _give_back(self, count: int) -> None:
        self._pipeline.waiters.add(self._scopes, -count, -self.tokens)
        self.left -= count
        self.tokens = 0


class Pipeline:
    def __init__(
        self,
        backend: Backend | None,
        config: ControlConfig,
        clock: Clock,
        metrics: Metrics,
        *,
        tenants: Tenants | None = None,
        store: LimitStore | None = None,
        lengths: LengthBook | None = None,
        seed: int = 0,
    ) -> None:
        """`backend` is the first of those that serve, others `open` later; `store` keeps the tenants' limits, in memory
        by default; `lengths` what is known of answers, anew by default. `seed` is of the jitter on Retry-After."""
        self.lanes: list[Dispatch] = []
        self.clock = clock
        self.metrics = metrics
        self.tenants = tenants or Tenants()
        self.waiters = Waiting()
        self.lengths = lengths or LengthBook()
        self.limits = OwnLimits(
            self.tenants, store or MemoryLimits(clock), clock, metrics, admit_unchecked=config.limits_down == "admit"
        )
        self.served = Served()
        self.device_seconds: defaultdict[str, float] = defaultdict(float)  # standard, of ended requests, by tenant
        self._config = config
        self._intake = Intake(self.tenants, config, clock)
        self._bounds = Bounds(config, self.tenants, self.waiters)
        self._come_back = ComeBack(random.Random(seed))
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.watchdog = Watchdog(self, config, clock)
        metrics.show(PlaneMetrics(self), BackendMetrics(lambda: ((lane.model, lane.backend) for lane in self.lanes)))
        if backend is not None:
            self.open(backend)

    def configure(self, config: Config) -> None:
        """These settings from the next decision on; what is here stays, with what it holds and has cost."""
        self._config = self.watchdog.config = config.control
        self.tenants.configure(config)
        self._intake.configure(config.control)
        self._bounds = Bounds(config.control, self.tenants, self.waiters)
        self.limits.limiter.admit_unchecked = config.control.limits_down == "admit"
        for tenant in {run.tenant for run in self.limits.waiting}:
            self.limits.changed(tenant)
        self.limits.settle_anew(self.runs())
        self.release()

    # --- the backends

    def open(self, backend: Backend) -> None:
        """It serves its models from now on. Nothing changes when it did."""
        if all(lane.backend is not backend for lane in self.lanes):
            self.lanes.append(Dispatch(backend, self.clock, lengths=self.lengths, expired=self._waited_too_long))

    def shut(self, backend: Backend) -> None:
        """It serves no more. Nothing may wait for it or run on it."""
        lane = next(lane for lane in self.lanes if lane.backend is backend)
        assert not (lane.queue or lane.running), "a backend is shut while requests are there"
        self.lanes.remove(lane)

    def lane(self, model: str) -> Dispatch:
        """Where requests for a model wait and run. A sole backend is asked whatever the name."""
        if len(self.lanes) == 1:
            return self.lanes[0]
        return next(lane for lane in self.lanes if model in lane.backend.caps.models)

    @property
    def dispatch(self) -> Dispatch:
        """Of the backend that has served longest."""
        return self.lanes[0]

    @property
    def backend(self) -> Backend:
        return self.dispatch.backend

    def load(self) -> LoadReport:
        """Of all backends together."""
        return together([lane.backend.load() for lane in self.lanes])

    def quantiles(self) -> Iterator[tuple[str, float, float]]:
        """As Foresight's, of the backend that has served longest."""
        return self.dispatch.foresight.quantiles() if self.lanes else iter(())

    def runs(self) -> list[Run]:
        """Those that run."""
        return [run for lane in self.lanes for run in lane.running.values()]

    @property
    def running(self) -> int:
        return sum(len(lane.running) for lane in self.lanes)

    @property
    def waiting(self) -> int:
        """Requests past the door that have not started, wherever they are."""
        return self.waiters.requests

    def waiting_runs(self) -> list[Run]:
        """Those that wait for their tenant's limits, then those that wait for the machine, in order."""
        return [*self.limits.waiting, *(run for lane in self.lanes for run in lane.queue)]

    def release(self) -> None:
        """Start what there is room for, everywhere."""
        for lane in self.lanes:
            lane.release()

    @property
    def draining(self) -> bool:
        return self._draining

    async def health(self) -> Health:
        """Whether new work would be taken and make progress."""
        if self._draining:
            return Health(False, "draining")
        if self.watchdog.hopeless.is_set():
            return Health(False, "an engine was given up")
        for lane in self.lanes:
            health = await lane.backend.health()
            if not health.ok:
                return health
        return Health(True)

    # --- the way in

    def look(self, tenant: str = DEFAULT_TENANT) -> None:
        """Refuse what the door would refuse, without taking a place: before a body is read. Raises as `door`."""
        self._allow(self._at_the_door(1, 0, tenant), tenant)

    def door(self, count: int = 1, tenant: str = DEFAULT_TENANT, least_tokens: int = 0) -> Place:
        """Take `count` places before any work on the prompts, which have `least_tokens` at the least by their bytes.

        Raises QueueFull or Unavailable.
        """
        self._allow(self._at_the_door(count, least_tokens, tenant), tenant)
        self._idle.clear()
        return Place(self, tenant, count, least_tokens)

    async def admit(
        self, place: Place, requests: Sequence[GenerateRequest], timeline: Timeline, caller: Caller | None = None
    ) -> list[Run]:
        """Put the requests of one caller in the queue, and start what there is room for. All of them or none.

        Raises QueueFull, RateLimited, BudgetExhausted, InvalidRequest, Forbidden or Unavailable. The caller owns the
        runs and must close each.
        """
        caller, lane = caller or Caller(), self.lane(requests[0].base_model)
        if requests[0].grammar is not None:  # the same for all
            await lane.backend.check(requests[0])
        timeline.enter(Phase.CLASSIFY)
        prepared = self._intake.prepare(requests, caller, timeline.opened, lane.estimator)
        timeline.facts.update(_facts(prepared))
        timeline.enter(Phase.ADMISSION)
        room = None if lane.queue else lane.room()
        ticket = prepared[0].ticket
        prediction = lane.foresight.predict(ticket, lane.around(ticket, room))
        decision = self._decide(place, prepared, prediction, lane, room)
        timeline.facts["admission"] = decision
        timeline.facts["predicted_ttft"] = prediction.ttft
        self._allow(decision, place.tenant)
        holds = await self.limits.reserve(prepared, caller.principal, timeline)
        try:
            if self._draining:  # a store may take its time
                self._allow(at_the_door(0, 0, There((), 0, draining=True)), place.tenant)
        except TailraceError:
            self.limits.release(holds)
            raise
        self._come_back.busy((ALL, tenant_scope(place.tenant)), self.clock.now())
        runs = [Run(self, lane, each, timeline, hold) for each, hold in zip(prepared, holds, strict=True)]
        runs[0].prediction = prediction
        for run in runs:
            place.take()
            self._enter(run)
        lane.release()
        for run in runs:
            self._count(run)
        return runs

    # --- called by Run

    def started(self, run: Run) -> None:
        """It has left the queue for the backend."""
        self._leave_the_waiting(run)
        if not run.hold.closed:
            run.hold.start(run.spent())

    def withdraw(self, run: Run) -> None:
        """It is to end: where it waits it will not start any more. `leave` is still to come."""
        self.limits.forget(run)
        run.lane.withdraw(run)

    def leave(self, run: Run, *, completed: bool) -> None:
        """The one end of a run, wherever it is."""
        self._leave_the_waiting(run)
        self.limits.forget(run)
        run.lane.leave(run)
        spent = run.spent()
        run.device_us, run.cost = spent.device_us, spent.money_day
        run.hold.settle(spent)
        self.metrics.spent(run.ticket.tenant, spent.device_us / MICRO)
        self.device_seconds[run.ticket.tenant] += spent.device_us / MICRO
        self.served.add(run.ticket.tenant, spent.device_us / MICRO, self.clock.now())
        if completed:
            scopes = (ALL, tenant_scope(run.ticket.tenant))
            self._come_back.completed(scopes, self.clock.now(), run.prompt_tokens)
        run.lane.release()
        self.settle()

    def settle(self) -> None:
        """Note when nothing is left to do."""
        if not (self.waiters.requests or self.running):
            self._come_back.idle()
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
        for run in [*self.waiting_runs(), *self.runs()]:
            run.fail(error)
        for lane in list(self.lanes):
            await lane.backend.drain(0)

    async def close(self) -> None:
        """When every request has ended: tell a shared store what it has not been told yet."""
        self.lengths.save()
        await self.limits.close()

    # --- inside

    def _decide(
        self, place: Place, prepared: Sequence[Prepared], prediction: Prediction, lane: Dispatch, room: Room | None
    ) -> Decision:
        """`room`: None while somebody waits for it."""
        ticket = prepared[0].ticket
        expected = ticket.estimate
        fits = room is not None and room.fits(expected.sequences, expected.prompt_tokens)
        if fits and not (prediction.wait or self._draining) and ticket.deadline is None:  # nothing can speak against it
            return _STARTS_NOW
        policy = self.tenants.policy.classes.of(ticket.request_class)
        tokens = sum(each.ticket.estimate.prompt_tokens for each in prepared)
        standings = self._bounds.door(place.tenant, place.left, place.tokens)
        of_class = self._bounds.of_class(ticket.request_class)
        there = There((*standings, of_class), room.starts if room is not None else 0, self._draining)
        now = self.clock.now()
        left = None if ticket.deadline is None else max(ticket.deadline - now, 0.0)
        terms = Terms(left, policy.queue_deadline or None, policy.as_job)
        visit = lane.promises.visit(place.tenant, prepared[0].request.prompt, now)
        known = Forecast(prediction.wait_within(_SURE), prediction.ttft_within(self._config.deadline_chance))
        decision = into_the_queue(Offer(tokens, fits, len(prepared)), there, visit.forecast(known, terms), terms)
        if isinstance(decision, Reject) and decision.retry_after is not None:
            return self._promised(decision, visit, lane, [each.ticket for each in prepared])
        visit.over(decision)
        return decision

    def _promised(self, late: Reject, visit: Visit, lane: Dispatch, tickets: Sequence[Ticket]) -> Reject:
        """With the time for which it has a place."""
        return late.after(visit.come_back(late, lane.occupied(tickets), self._come_back.spread))

    def _enter(self, run: Run) -> None:
        """Wait for the tenant's limits, or for the machine."""
        ticket = run.ticket
        wait = self.tenants.policy.classes.of(ticket.request_class).queue_deadline
        until = ticket.arrival + wait if wait else None
        if run.hold.granted:
            self._queue(run, until)
        else:
            self.limits.wait(run, until, lambda: self._granted(run, until))

    def _queue(self, run: Run, until: float | None) -> None:
        run.waits()
        run.lane.push(run, until)

    def _granted(self, run: Run, until: float | None) -> None:
        self._queue(run, until)
        run.lane.release()

    def _count(self, run: Run) -> None:
        """Among those who wait, unless it has started at once."""
        if run.waiting:
            run.scopes = (ALL, tenant_scope(run.ticket.tenant), class_scope(run.ticket.request_class))
            self.waiters.add(run.scopes, 1, run.prompt_tokens)

    def _leave_the_waiting(self, run: Run) -> None:
        if run.scopes:
            self.waiters.add(run.scopes, -1, -run.prompt_tokens)
            run.scopes = ()

    def _waited_too_long(self, run: Run, seconds: float) -> None:
        """Or it will have, as it would start in so many `seconds`."""
        ticket, now = run.ticket, self.clock.now()
        scope, bound = class_scope(ticket.request_class), run.waits_until - ticket.arrival
        reason = "queue_too_long" if seconds else "queue_deadline"
        late = max(now + seconds - run.waits_until, 0.0)
        reject = Reject(reason, 503, scope, now - ticket.arrival + seconds, bound, retry_after=late)
        visit = run.lane.promises.visit(ticket.tenant, run.request.prompt, now)
        reject = self._promised(reject, visit, run.lane, [ticket])
        self.metrics.rejected(reject.reason)
        run.fail(self._refusal(reject, ticket.tenant))

    def _at_the_door(self, count: int, least_tokens: int, tenant: str) -> Admit | Reject:
        """Room is looked up only where it matters. While somebody waits for it there is room for nobody."""
        if not self._draining and self._bounds.free(tenant, count, max(least_tokens, 1)):
            return _PLACE_FREE
        standings = self._bounds.door(tenant)
        decision = at_the_door(count, least_tokens, There(standings, 0, self._draining))
        if isinstance(decision, Admit) or self._draining:
            return decision
        starts = max((lane.room().starts for lane in self.lanes if not lane.queue), default=0)
        return at_the_door(count, least_tokens, There(standings, starts)) if starts > 0 else decision

    def _allow(self, decision: Decision, tenant: str) -> None:
        if isinstance(decision, AsJob):
            self.metrics.rejected(decision.reason)
            error = self._refusal(decision.refusal, tenant)
            error.detail["as_job"] = True
            raise error
        if isinstance(decision, Reject):
            self.metrics.rejected(decision.reason)
            raise self._refusal(decision, tenant)

    def _refusal(self, reject: Reject, tenant: str) -> TailraceError:
        if reject.reason == "draining":
            return refusal(reject.after(_DRAIN_RETRY))
        if reject.retry_after is not None:
            return refusal(reject)
        return refusal(reject.after(self._come_back.seconds(reject, tenant_scope(tenant), self.clock.now())))


def _facts(prepared: Sequence[Prepared]) -> dict[str, object]:
    ticket = prepared[0].ticket
    return {
        "tenant": ticket.tenant,
        "key": ticket.key,
        "class": ticket.request_class.value,
        "class_reason": prepared[0].because,
        "band": int(ticket.band),
        "bucket": ticket.bucket,
        "deadline": ticket.deadline,
        "uncached_estimate": sum([each.ticket.estimate.uncached_tokens for each in prepared]),
        "estimated_seconds": sum([each.ticket.estimate.seconds for each in prepared]),
    }
