"""The engine's one thread: take in what was asked, plan, forward, sample, commit, hand over; sleep when idle.

    inbox (submit, abort) -> plan -> forward -> late texts, delivery, look ahead -> sample -> commit -> texts, delivery

Owns every Sequence while it lives; other threads only put commands into the inbox and read plain numbers. A fault
in one request's processing ends that request; a fault of a step ends the sequences of that step; either way the
loop goes on. `health` and `pulse` tell when steps keep failing or one does not return; then another loop can take its
place, and this one is abandoned. Refuses nothing: requests were validated before.

`forward` returns while the executor's other threads compute. What the next step does not depend on happens then: what
the step before took is learned and paid for, tokens that cannot end their choice become text and are delivered, and the
rows of the next plan are made for the case that nobody ends. All that can end a choice (end tokens, stop strings, the
length) happens in commit, before the next plan: so a step never computes a row for a choice that has ended.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from threading import Condition, Thread

from tailrace.clock import Clock
from tailrace.engine.answer import Answer
from tailrace.engine.charges import Bill, Charges
from tailrace.engine.cost import CostModel
from tailrace.engine.outlook import outlook
from tailrace.engine.runner import Runner
from tailrace.engine.scheduler import Scheduler
from tailrace.engine.sequence import Group, Sequence, State
from tailrace.engine.spec.draft import verify
from tailrace.engine.stats import EngineStats
from tailrace.engine.step import Row, StepPlan, StepResult, Update, Work
from tailrace.engine.turns import Turns
from tailrace.errors import InternalError
from tailrace.frozen import frozen
from tailrace.text.tokenizer import Tokenizer
from tailrace.types import FinishReason, Health, Outlook, Pulse, TokenEvent

Delivery = dict[str, list[TokenEvent]]  # by request id, events in order

SWITCH_INTERVAL = 0.0005
FAILURES_UNTIL_UNHEALTHY = 3
CHECK_EVERY = 10.0  # seconds between integrity checks when idle
STOP_GRACE = 5.0  # seconds until a thread that does not end is left to itself

log = logging.getLogger(__name__)


class _Left(BaseException):
    """The thread is to end, past whatever handles the faults of a step."""


@frozen
class _Submit:
    group: Group


@frozen
class _Late:
    """What is left to do of a committed step, which the next does not depend on: what it took, texts, delivery."""

    work: Work
    seconds: float
    updates: list[Update]
    result: StepResult


@frozen
class _Unpaid:
    """A committed step whose requests have not paid for it."""

    bill: Bill
    kept: Seq[Row]
    seconds: float


@frozen
class _Abort:
    request_id: str | None  # None: everyone
    asked: float


class EngineLoop:
    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        *,
        tokenizer: Tokenizer,
        cost: CostModel,
        clock: Clock,
        deliver: Callable[[Delivery], None],
        turns: Turns | None = None,
    ) -> None:
        """`deliver` is called in the loop's thread with events of all requests: once a step while it runs, for the step
        before, and once behind it, for what ended or can end. `turns`: where other engines use the same threads."""
        self.scheduler = scheduler
        self.cost = cost
        self.stats = EngineStats()
        self.charges = Charges(cost.standard)
        self._runner = runner
        self._tokenizer = tokenizer
        self._clock = clock
        self._deliver = deliver
        self._turns = turns
        self._answers: dict[str, Answer] = {}
        self._inbox: list[_Submit | _Abort] = []
        self._wake = Condition()
        self._stopping = False
        self._abandoned = False
        self._beats = 0
        self._failures = 0  # in a row
        self._step: tuple[StepPlan, float] | None = None  # the one that runs, and when it will likely end
        self._bill: Bill | None = None  # of the step that runs
        self._unpaid: _Unpaid | None = None
        self._late: _Late | None = None
        self._broken: list[tuple[Update, Exception]] = []  # whose text failed while a step ran
        self._checked = clock.now()
        self._thread: Thread | None = None
        self._switch_interval = sys.getswitchinterval()

    # ---- called from other threads --------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread. Until `stop`, Python threads of this process also take turns more often.

        When a native call ends while another thread runs Python, the loop waits for the interpreter up to the switch
        interval, on every step. benchmarks/engine/step_overhead.py --contend measures it.
        """
        self._switch_interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL)
        self._thread = Thread(target=self._run, name="tailrace-engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End every request with ABORT, then the thread; returns when it has ended, or hangs in a step."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join(STOP_GRACE)
            if self._thread.is_alive():
                log.error("a step does not end: its thread is left to itself")
            self._thread = None
            sys.setswitchinterval(self._switch_interval)

    def abandon(self) -> None:
        """Another loop takes its place. The thread may hang in a native call, which nothing can end: it keeps what it
        uses, and ends by itself should it ever return. What it still delivers is not wanted."""
        self._abandoned = self._stopping = True
        self._thread = None
        sys.setswitchinterval(self._switch_interval)

    def takes_over(self, other: EngineLoop) -> None:
        """Before `start`: the counts of the one that it replaces go on."""
        self.stats, self.charges = other.stats, other.charges

    def submit(self, group: Group) -> None:
        """Queue a validated request with an id that no other live request has."""
        self._put(_Submit(group))

    def abort(self, request_id: str | None) -> None:
        """End a request (None: all) before the next step. Unknown ids are ignored."""
        self._put(_Abort(request_id, self._clock.now()))

    @property
    def live(self) -> int:
        """Requests that have not had all their terminal events."""
        return len(self._answers) + len(self._inbox)

    def health(self) -> Health:
        stats = self.stats
        detail: dict[str, float | int | str] = {"steps": stats.steps, "failed_steps": stats.failed_steps}
        if self._thread is None or not self._thread.is_alive():
            return Health(False, "the engine thread is not running", detail)
        if self._failures >= FAILURES_UNTIL_UNHEALTHY:
            return Health(False, f"the last {self._failures} steps failed", detail)
        return Health(True, "", detail)

    def pulse(self) -> Pulse:
        """Whether it goes on. A loop that is stopped has nothing to do."""
        step, thread = self._step, self._thread
        if thread is None:
            return Pulse(self._beats)
        fault = ""
        if not thread.is_alive():
            fault = "crashed"
        elif self._turns is not None and self._turns.given_up:
            fault = "team_lost"
        elif self._failures >= FAILURES_UNTIL_UNHEALTHY:
            fault = "failing"
        busy = bool(self._inbox) or self.scheduler.has_work or step is not None
        return Pulse(self._beats, busy, 0.0 if step is None else self.cost.expect(step[0].work), fault)

    def outlook(self) -> Outlook:
        """What the engine is in the middle of. Read while it works, so that a count may be a moment old."""
        return outlook(self.scheduler, self.cost, self._step, self._clock.now())

    def _put(self, command: _Submit | _Abort) -> None:
        with self._wake:
            self._inbox.append(command)
            self._wake.notify()

    # ---- the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._work()
        except _Left:
            log.warning("a step of an engine that was replaced has returned after all")
        except Exception:
            log.critical("the engine's thread has ended by a fault", exc_info=True)

    def _work(self) -> None:
        while not self._stopping:
            self._await_work()
            if self._turns is None:
                self.turn(self._take_in())
            else:
                self._take_turn(self._turns)
        self.turn([*self._take_in(), _Abort(None, self._clock.now())])

    def _take_turn(self, turns: Turns) -> None:
        """One round when the other engines have had theirs."""
        turns.enter()
        try:
            self.turn(self._take_in())
        finally:
            turns.leave()

    def _await_work(self) -> None:
        """Sleep while there is nothing at all to do."""
        if not self._inbox and not self.scheduler.has_work and not self._stopping:
            self._rest()
        with self._wake:
            while not self._inbox and not self.scheduler.has_work and not self._stopping:
                self._wake.wait()

    def _take_in(self) -> list[_Submit | _Abort]:
        """The commands since the last turn."""
        with self._wake:
            commands, self._inbox = self._inbox, []
        return commands

    def turn(self, commands: Iterable[_Submit | _Abort] = ()) -> None:
        """One round: commands, then one step if there is work. Public for tests."""
        started = self._clock.now()
        out: Delivery = {}
        commands = tuple(commands)
        if commands:
            self._publish_late(out)
            self._beats += 1
        for command in commands:
            self._obey(command, out)
        plan = self._plan(out)
        seconds = 0.0
        if plan is not None:
            result, seconds = self._execute(plan, out)
            if result is not None:
                self._commit(plan, result, seconds, out)
        if not self.scheduler.has_work:
            self._publish_late(out)
        if out:
            self._hand_over(out)
        self.stats.overhead_seconds += self._clock.now() - started - seconds

    def _obey(self, command: _Submit | _Abort, out: Delivery) -> None:
        if isinstance(command, _Submit):
            self._accept(command.group, out)
            return
        wanted = command.request_id
        for answer in [a for a in self._answers.values() if wanted is None or a.group.request.id == wanted]:
            updates = self.scheduler.end(answer.group, FinishReason.ABORT, self._clock.now())
            self.stats.count_abort(self._clock.now() - command.asked)
            self._publish(updates, None, out)

    def _accept(self, group: Group, out: Delivery) -> None:
        request = group.request
        try:
            self._answers[request.id] = Answer(group, self._tokenizer)
        except Exception as error:
            log.exception("request %s could not be prepared", request.id)
            events = [TokenEvent(i, finish=FinishReason.ERROR, error=_internal(error)) for i in range(request.n)]
            out.setdefault(request.id, []).extend(events)
            return
        self.scheduler.submit(group)
        if request.stop.max_tokens == 0 and not group.wants_scores and request.pooling is None:
            self._publish(self.scheduler.end(group, FinishReason.LENGTH, self._clock.now()), None, out)

    def _plan(self, out: Delivery) -> StepPlan | None:
        try:
            return self.scheduler.plan(self._clock.now())
        except Exception as error:
            log.exception("planning failed; all requests end")
            self._start_over(error, out)
            return None

    def _execute(self, plan: StepPlan, out: Delivery) -> tuple[StepResult | None, float]:
        started = self._clock.now()
        self._step = (plan, started + self.cost.expect(plan.work))
        try:
            self._runner.forward(plan)
            self._leave_if_abandoned()
            self._overlap(plan)
            result = self._runner.sample(plan)
            self._leave_if_abandoned()
        except Exception as error:
            log.exception("a step failed; its %d sequences end", len(plan.rows))
            self.charges.failed(self._clock.now() - started)
            self._fail(plan, error, out)
            return None, self._clock.now() - started
        finally:
            self._step = None
            self._beats += 1
            if self._turns is not None:
                self._turns.streams = plan.work.decode
                self._turns.leave(self._clock.now() - started)
        seconds = self._clock.now() - started
        self._took(plan, seconds)
        return result, seconds

    def _leave_if_abandoned(self) -> None:
        """It did return after all, when another loop works in its place: end the thread, touching nothing."""
        if self._abandoned:
            raise _Left

    def _overlap(self, plan: StepPlan) -> None:
        """What can be done while the step is computed."""
        out: Delivery = {}
        self._publish_late(out)
        if out:
            self._hand_over(out)
        self._bill = self.charges.bill(plan)
        self.scheduler.look_ahead(plan)

    def _took(self, plan: StepPlan, seconds: float) -> None:
        """A step went well."""
        self.stats.steps += 1
        self.stats.step_seconds += seconds
        self.stats.tally.seconds.add(seconds)
        self.stats.count_plan(plan)
        self._failures = 0

    def _commit(self, plan: StepPlan, result: StepResult, seconds: float, out: Delivery) -> None:
        try:
            for scores in result.scores:
                self._answers[scores.sequence.group.request.id].score(scores)
            for hidden in result.hidden:
                self._answers[hidden.sequence.group.request.id].pool(hidden)
            kept = verify(plan, result.tokens)[0] if plan.drafts else plan.rows
            assert self._bill is not None
            self._unpaid = _Unpaid(self._bill, kept, seconds)
            updates = self.scheduler.commit(plan, result, self._clock.now())
        except Exception as error:
            log.exception("a step could not be committed; all requests end")
            self._start_over(error, out)
            return
        now, late = self._parted(plan, updates)
        self._late = _Late(plan.work, seconds, late, result)
        self._publish(now, result, out)
        broken, self._broken = self._broken, []
        for update, text_error in broken:
            self._end_broken(update, text_error, out)

    def _parted(self, plan: StepPlan, updates: Iterable[Update]) -> tuple[list[Update], list[Update]]:
        """Those with which their choice ends, or whose text may end it, and those that can be late."""
        # Tokens of a choice stay in order, and whether one may end it hangs on those before.
        several = {plan.rows[draft.row].sequence for draft in plan.drafts}
        answers = self._answers
        now: list[Update] = []
        late: list[Update] = []
        for update in updates:
            sequence, token, _, finish, _, _ = update
            answer = answers.get(sequence.group.request.id)
            if (
                token is None
                or finish is not None
                or answer is None
                or sequence in several
                or answer.streams[sequence.index].may_end(token)
            ):
                now.append(update)
            else:
                late.append(update)
        return now, late

    def _pay(self) -> None:
        """Divide what the step before took among its requests, if that is not done: before one of them ends."""
        unpaid, self._unpaid = self._unpaid, None
        if unpaid is not None:
            self.charges.charge(unpaid.bill, unpaid.kept, unpaid.seconds)

    def _publish_late(self, out: Delivery) -> None:
        self._pay()
        late, self._late = self._late, None
        if late is not None:
            self.stats.tally.error.add(abs(self.cost.observe(late.work, late.seconds) - 1.0))
            self._publish(late.updates, late.result, out)

    def _publish(self, updates: Iterable[Update], result: StepResult | None, out: Delivery) -> None:
        """Updates to events; a choice whose text ends it is finished here."""
        now = self._clock.now()
        for update in updates:
            group = update.sequence.group
            answer = self._answers.get(group.request.id)
            if answer is None or update.sequence.closed:  # ended in this step, by a sibling's fault or its own text
                continue
            try:
                event = answer.event(update, result)
            except Exception as error:
                log.exception("request %s failed", group.request.id)
                if self._step is None:
                    self._end_broken(update, _internal(error), out)
                else:  # the executor may be writing into its blocks
                    self._broken.append((update, _internal(error)))
                continue
            out.setdefault(group.request.id, []).append(event)
            if event.finish is not None:
                if update.finish is None:
                    self._finish(update.sequence, event.finish, now)
                self._close(update, event)

    def _finish(self, sequence: Sequence, reason: FinishReason, now: float) -> None:
        """Its text ended it, maybe at a token before the last of this step, which then ended it in the scheduler."""
        if sequence.state is State.FINISHED:
            sequence.finish = reason
        else:
            self.scheduler.finish(sequence, reason, now)

    def _close(self, update: Update, event: TokenEvent) -> None:
        self._pay()
        group = update.sequence.group
        event.facts = group.facts(update.sequence, self.scheduler.kv.block_tokens)
        update.sequence.closed = True
        self.stats.finished += 1
        self.stats.drafted_tokens += update.sequence.drafted
        self.stats.accepted_tokens += update.sequence.accepted
        if all(sequence.closed for sequence in group.sequences):
            self._answers.pop(group.request.id, None)
            self.stats.cached_tokens += group.cached
            self.stats.recomputed_tokens += group.recomputed

    def _end_broken(self, update: Update, error: Exception, out: Delivery) -> None:
        """Text processing of a request failed: all its choices that have not ended end with the error."""
        group = update.sequence.group
        self.scheduler.end(group, FinishReason.ERROR, self._clock.now(), error)
        self._close_all(group, error, out)

    def _close_all(self, group: Group, error: Exception, out: Delivery) -> None:
        for sequence in group.sequences:
            if not sequence.closed:
                event = TokenEvent(sequence.index, finish=FinishReason.ERROR, error=error)
                out.setdefault(group.request.id, []).append(event)
                self._close(Update(sequence, None, -1, FinishReason.ERROR, error), event)

    def _fail(self, plan: StepPlan, error: Exception, out: Delivery) -> None:
        """The step's sequences end; everyone else goes on if the KV books still balance."""
        self._publish_late(out)
        self.stats.failed_steps += 1
        self._failures += 1
        now = self._clock.now()
        for group in dict.fromkeys(row.sequence.group for row in plan.rows):
            self._publish(self.scheduler.end(group, FinishReason.ERROR, now, _internal(error)), None, out)
        try:
            self.scheduler.kv.check(self.scheduler.live_tables())
        except AssertionError as broken:
            log.error("KV cache inconsistent after a failed step: %s", broken)
            self._start_over(error, out)

    def _start_over(self, error: Exception, out: Delivery) -> None:
        """Our own invariants broke: end everyone and begin with empty books."""
        self._publish_late(out)
        self._failures += 1
        self.stats.failed_steps += 1
        groups = [answer.group for answer in self._answers.values()]
        self.scheduler.reset(groups, self._clock.now())
        for group in groups:
            self._close_all(group, _internal(error), out)

    def _hand_over(self, out: Delivery) -> None:
        try:
            self._deliver(out)
        except Exception:
            log.exception("events could not be delivered")

    def _rest(self) -> None:
        """Going idle: prove now and then that nothing leaked."""
        if self._turns is not None:
            self._turns.rest()
        now = self._clock.now()
        if now - self._checked < CHECK_EVERY:
            return
        self._checked = now
        try:
            self.scheduler.kv.check([])
        except AssertionError as broken:
            log.error("KV cache inconsistent when idle: %s; emptied", broken)
            self.scheduler.reset([], now)


def _internal(error: Exception) -> Exception:
    if isinstance(error, InternalError):
        return error
    wrapped = InternalError("processing this request failed")
    wrapped.__cause__ = error
    return wrapped
