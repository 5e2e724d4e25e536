"""What waits for one backend and what runs there: the first in the fair order starts whenever it has room.

Owns the queue, the running requests and what is learned from them: served cost, answer lengths, prediction errors.
Whether a request may wait at all is not decided here. Everything runs on the event loop, between two awaits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tailrace.backends.base import Backend
from tailrace.clock import Clock
from tailrace.control.classes import Band
from tailrace.control.estimate import Estimator
from tailrace.control.expiry import Expiry
from tailrace.control.fair_queue import FairQueue, QueueRules
from tailrace.control.foresight import Around, Foresight, Times
from tailrace.control.kv_admission import Demand, KvAdmission
from tailrace.control.lengths import LengthBook
from tailrace.control.long_work import LongWork
from tailrace.control.promises import Promises
from tailrace.control.reserve import Reserve
from tailrace.control.room import Given, Room, prompt_blocks, room
from tailrace.control.step_share import step_share
from tailrace.control.ticket import Ticket
from tailrace.engine.outlook import prefill
from tailrace.policy import RequestClass
from tailrace.types import GenerateRequest

if TYPE_CHECKING:
    from tailrace.control.run import Run


_LOOK = 0.25  # of the time that a request may wait, between two looks at when it will start


class Dispatch:
    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        *,
        lengths: LengthBook | None = None,
        rules: QueueRules | None = None,
        expired: Callable[[Run, float], None] | None = None,
    ) -> None:
        """`expired` is told of each request whose time to start is over, or will be before it starts, and in how many
        seconds it would start, 0 where the time is over; it still waits then."""
        caps = backend.caps
        self.backend = backend
        self.estimator = Estimator(backend, lengths)
        self.queue: FairQueue[Run] = FairQueue(rules or default_rules(caps.max_sequences))
        self.running: dict[str, Run] = {}
        self.foresight = Foresight(self.queue, backend, self.around)
        blocks = backend.load().kv_blocks_total
        self.memory = KvAdmission(blocks, caps.block_tokens)
        self.reserve = Reserve(caps.max_sequences, blocks * caps.block_tokens)
        self.promises = Promises()
        self._long = LongWork(caps.costs)
        self._clock = clock
        self._waiting: dict[str, Run] = {}
        self._expired = expired or (lambda run, seconds: None)
        self._expiry = Expiry(clock, lambda name: self._expired(self._waiting[name], 0.0))
        self._looks = Expiry(clock, self._look_again)
        backend.on_room(self.release)

    @property
    def model(self) -> str:
        """The name that its backend serves, the first of several."""
        return self.backend.caps.models[0]

    # --- a request's way

    def push(self, run: Run, until: float | None = None) -> None:
        """It waits from now on, at most until that time on the clock."""
        run.waits_since = now = self._clock.now()
        run.request = scheduled(run.request, run.ticket)
        run.yields = run.request.background
        if run.request.deadline is None and run.ticket.request_class is RequestClass.LONG:
            due = self._long.came(run.id, run.ticket.estimate, now)
            run.request = replace(run.request, deadline=due)
        run.prediction = run.prediction or self.foresight.predict(run.ticket)
        self.reserve.came(run.tenant, run.ticket.weight, run.waits_since)
        self.queue.push(run)
        self._waiting[run.id] = run
        if until is not None:
            run.waits_until = until
            self._expiry.add(run.id, until)
            self._looks.add(run.id, now + (until - now) * _LOOK)

    def release(self) -> None:
        """Start what the backend has room for."""
        while self.queue:
            there = self.room()
            if not (there.starts > 0 or any(run.yields for run in self.running.values())):
                return
            run = self.queue.pop_ready(partial(self._fits, there), self._held())
            if run is None:
                return
            self._left_the_queue(run)
            self.running[run.id] = run
            run.started = self._clock.now()
            run.release()

    def withdraw(self, run: Run) -> None:
        """It starts no more."""
        if self.queue.remove(run):
            self._left_the_queue(run)

    def leave(self, run: Run) -> None:
        """The end of a run, wherever it is. What no backend has heard of cost nothing."""
        self.withdraw(run)
        self._long.ended(run.id)
        if self.running.pop(run.id, None) is not None:
            self.queue.ended(run, run.device_seconds if run.begun else 0.0)
            self._learn(run)

    def served(self, run: Run, tokens: int) -> None:
        """Tokens of its answer have been made."""
        self.queue.served(run, tokens * run.token_seconds)

    # --- what is there

    def room(self) -> Room:
        """What the backend could start, less what it was given and does not show yet."""
        caps = self.backend.caps
        sequences = pledged = 0
        for run in self.running.values():
            if not run.begun:
                sequences += run.sequences
                pledged += prompt_blocks(run.prompt_tokens, caps.block_tokens) + run.sequences
        return room(self.backend.load(), caps, Given(sequences, pledged))

    # --- inside

    def _left_the_queue(self, run: Run) -> None:
        del self._waiting[run.id]
        self._expiry.drop(run.id)
        self._looks.drop(run.id)

    def _look_again(self, name: str) -> None:
        """It has waited for a part of its time: whether it will start in the rest of it, as far as one can tell now."""
        run, now = self._waiting[name], self._clock.now()
        wait = self.foresight.predict(run.ticket).wait
        if now + wait > run.waits_until:
            self._expired(run, wait)
        else:
            self._looks.add(name, now + (run.waits_until - run.waits_since) * _LOOK)

    def _fits(self, there: Room, run: Run) -> bool:
        if not self.running:
            return there.fits(run.sequences, run.prompt_tokens)
        background = [] if run.yields else [r for r in self.running.values() if r.yields]
        if background:
            there = self._with(there, background)
        if not there.fits(run.sequences, run.prompt_tokens):
            return False
        others = [other for other in self.running.values() if run.yields or not other.yields]
        return self.memory.fits(self._demand(run), map(self._demand, others))

    def _with(self, there: Room, background: list[Run]) -> Room:
        """The room when the engine takes it from these: they yield to whatever goes before them."""
        blocks = there.blocks
        if blocks is not None:
            held = sum(run.prompt_tokens + run.generated for run in background)
            blocks += held // there.block_tokens
        return replace(there, sequences=there.sequences + sum(run.open_choices for run in background), blocks=blocks)

    def _demand(self, run: Run) -> Demand:
        return Demand(run.prompt_tokens + run.generated, run.open_choices, self._left(run))

    def _left(self, run: Run) -> float:
        """Tokens that each of its choices is expected to make yet. Looked up again now and then only."""
        generated = run.longest
        if run.expected_length <= generated or generated >= run.looked_at + 16:
            run.looked_at = generated
            run.expected_length = self.estimator.expect(run.kind, run.request.stop.max_tokens, generated)
        return max(run.expected_length - generated, 1.0)

    def around(self, ticket: Ticket, room: Room | None = None) -> Around:
        """What predictions look at beside the order. `room`: where that is known already."""
        remaining = [self._left(run) for run in self.running.values() for _ in range(run.open_choices)]
        pending = [
            prefill(run.request, max(run.ticket.estimate.uncached_tokens, 1))
            for run in self.running.values()
            if not run.begun
        ]
        return Around(self._starts(ticket.tenant, room), remaining, pending)

    def occupied(self, tickets: Iterable[Ticket]) -> float:
        """Seconds by which these delay the next of their tenant, at the machine's pace and beside who waits now."""
        return self.foresight.pace() * sum(each.estimate.seconds * self.queue.crowd(each) for each in tickets)

    def _held(self) -> frozenset[str]:
        return self.reserve.held(self.running.values(), self.queue)

    def _starts(self, tenant: str, room: Room | None) -> int:
        """Sequences of this tenant that could start now; none while someone waits who can."""
        if self.queue:
            held = self._held()
            if tenant in held or not self.queue.waits_only(held):
                return 0
        return (room or self.room()).starts

    def _learn(self, run: Run) -> None:
        for tokens, ended in run.choices():
            if ended or tokens:
                self.estimator.learn(run.kind, tokens, cut=not ended)
        load = self.backend.load()
        self.memory.observe(load.computed_tokens, load.recomputed_tokens)
        if run.prediction is None or run.first_token is None or run.failed:
            return
        assert run.started is not None
        since, now = run.waits_since, self._clock.now()
        steps = max(run.longest - 1, 1)
        times = Times(run.started - since, run.first_token - since, (now - run.first_token) / steps, now - since)
        self.foresight.learn(run.prediction, times)
        if run.device_seconds is not None:
            blocks = -(-(run.prompt_tokens + run.generated) // self.backend.caps.block_tokens)
            self.foresight.learn_cost(run.ticket, run.device_seconds, run.generated / run.sequences, blocks)


def default_rules(slots: int) -> QueueRules:
    """Long requests take half of the slots at most, so that a short one finds a place."""
    return QueueRules(class_sequences={RequestClass.LONG: max(1, slots // 2)})


def scheduled(request: GenerateRequest, ticket: Ticket) -> GenerateRequest:
    """With what the engine needs to know of the plane's order, as plain numbers."""
    background = ticket.band == Band.BACKGROUND
    return replace(
        request,
        priority=-ticket.band,
        weight=ticket.weight,
        share_group=ticket.share_group,
        deadline=ticket.deadline,
        background=background,
        step_share=step_share(ticket),
    )
