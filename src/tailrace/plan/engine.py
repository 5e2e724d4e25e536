"""The engine's loop on a virtual clock, and the model behind it whose answers have the recorded lengths.

The loop is the real one but for its thread: a step is planned when the last one has ended and committed when its time
has passed, and whatever happens in between - arrivals, aborts - is taken in at the next step, as in the thread.

Readers take what is made every few tokens, like clients on slow lines, which changes no time that is measured and makes
a simulation several times faster: waking a reader costs more than planning its row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np

from tailrace.backends.fake import END
from tailrace.clock import Clock
from tailrace.engine.loop import Delivery, EngineLoop, _Abort, _Submit
from tailrace.engine.step import StepPlan, StepResult
from tailrace.plan.baselines import ClassicScheduler
from tailrace.plan.steps import StepTimes
from tailrace.types import Health

READ_EVERY = 8  # tokens
WORD = 97  # the token that all answers are made of
_NOTHING = np.empty(0, np.float32)
_NO_IDS = np.empty((0, 0), np.int32)
_NO_TOPS = np.empty((0, 0), np.float32)


class Answer:
    """`last`: when its latest token was made. `gap`: the longest time between two tokens so far."""

    __slots__ = ("gap", "last", "length")

    def __init__(self, length: int) -> None:
        self.length = length
        self.gap = -1.0  # fewer than two tokens
        self.last: float | None = None

    @property
    def worst_gap(self) -> float | None:
        return None if self.gap < 0.0 else self.gap


class RecordedAnswers:
    """A Runner. The lengths are known to nobody else: an answer ends when its end token is sampled."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._answers: dict[str, Answer] = {}

    def expect(self, request_id: str, length: int) -> None:
        self._answers[request_id] = Answer(length)

    def take(self, request_id: str) -> Answer | None:
        """What became of it; None when it was never asked for."""
        return self._answers.pop(request_id, None)

    def forward(self, plan: StepPlan) -> None:
        pass

    def sample(self, plan: StepPlan) -> StepResult:
        now, tokens, answers = self._clock.now(), [], self._answers
        for sequence, behind in zip(plan.samplers, plan.behind, strict=True):
            group = sequence.group
            answer = answers[group.request.id]
            if answer.last is not None and now - answer.last > answer.gap:
                answer.gap = now - answer.last
            answer.last = now
            done = sequence.known + 1 + behind - group.prompt_tokens >= answer.length
            tokens.append(END if done else WORD)
        return StepResult(tokens, _NOTHING, _NO_IDS, _NO_TOPS)


class VirtualEngine(EngineLoop):
    """An EngineLoop in callbacks of a VirtualLoop."""

    def __init__(self, *args: Any, steps: StepTimes, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._steps = steps
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turning = False
        self._alarm: asyncio.TimerHandle | None = None
        self._unread: Delivery = {}  # of requests that have had their first event

    def live_costs(self) -> Iterator[tuple[str, float]]:
        """(request id, standard device-seconds so far) of what has not ended."""
        return ((name, answer.group.standard_seconds) for name, answer in self._answers.items())

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        self._loop = None

    def health(self) -> Health:
        return Health(self._loop is not None)

    def _put(self, command: _Submit | _Abort) -> None:
        self._inbox.append(command)
        if not self._turning and self._loop is not None:
            self._turning = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        """Take in what was asked and plan; the step ends later."""
        self._turning = True
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        commands, self._inbox = self._inbox, []
        out: Delivery = {}
        for command in commands:
            self._obey(command, out)
        plan = self._plan(out)
        if self._loop is None:
            return
        if plan is not None:
            seconds = self._steps.seconds(plan.work)
            self._step = (plan, self._clock.now() + self.cost.expect(plan.work))
            self._loop.call_later(seconds + self._steps.machine.overhead, self._end, plan, out, seconds)
            return
        if out:
            self._hand_over(out)
        self._rest_until_work()

    def _rest_until_work(self) -> None:
        """Nothing can run now: until something comes, or until a batch has been waited for."""
        assert self._loop is not None
        self._turning = bool(self._inbox)
        if self._turning:
            self._loop.call_soon(self._begin)
        elif isinstance(self.scheduler, ClassicScheduler) and self.scheduler.wake_at is not None:
            self._alarm = self._loop.call_at(self.scheduler.wake_at, self._begin)

    def _end(self, plan: StepPlan, out: Delivery, seconds: float) -> None:
        self._step = None
        self._steps.count(len(plan.rows), seconds)
        self._runner.forward(plan)
        self._overlap(plan)
        self._took(plan, seconds)
        self._commit(plan, self._runner.sample(plan), seconds, out)
        self._publish_late(out)  # no time passes until the next step begins
        if out:
            self._hand_over(out)
        self._begin()

    def _hand_over(self, out: Delivery) -> None:
        """First and last events at once, those between in bunches."""
        ready: Delivery = {}
        unread = self._unread
        for request_id, events in out.items():
            going = events[-1].finish is None
            held = unread.get(request_id)
            if held is None:
                ready[request_id] = events
            else:
                held += events
                if going and len(held) < READ_EVERY:
                    continue
                ready[request_id] = held
            if going:
                unread[request_id] = []
            else:
                unread.pop(request_id, None)
        if ready:
            super()._hand_over(ready)
