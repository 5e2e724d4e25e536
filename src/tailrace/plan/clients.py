"""Who sends: each request at its time, through the same door as HTTP does; refused ones come back when they are told.

The counterpart of `api/exchange.py` and `control/answering`, without bodies and sockets.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from tailrace.clock import Clock
from tailrace.control.intake import Caller
from tailrace.control.keys import Principal
from tailrace.control.pipeline import Pipeline
from tailrace.control.session import Session
from tailrace.errors import ContextLengthExceeded, TailraceError
from tailrace.frozen import frozen
from tailrace.observe.timeline import Phase, Timeline
from tailrace.plan.engine import RecordedAnswers
from tailrace.plan.record import Record, Refusal
from tailrace.plan.workload import Arrival, request
from tailrace.policy import DEFAULT_TENANT


@frozen
class Habits:
    """`max_tokens` that clients ask for; 0: exactly what the answer will have, as load generators do. `tries`: how
    often one is sent in all, each time after the whole seconds of the last refusal's Retry-After header."""

    max_tokens: int = 0
    tries: int = 1


@dataclass(slots=True)
class Clients:
    """`fcfs`: everybody is the same tenant."""

    pipeline: Pipeline
    answers: RecordedAnswers
    clock: Clock
    habits: Habits
    fcfs: bool = False
    records: list[Record] = field(default_factory=list)

    async def send_all(self, arrivals: Iterable[Arrival]) -> None:
        """Returns when the last request has had its end."""
        start = self.clock.now()
        async with asyncio.TaskGroup() as tasks:
            for arrival in arrivals:
                wait = start + arrival.at - self.clock.now()
                if wait > 0:
                    await asyncio.sleep(wait)
                tasks.create_task(self._live(arrival))

    async def _live(self, arrival: Arrival) -> None:
        row = arrival.row
        record = Record(arrival.index, arrival.client, self.clock.now(), row.input_tokens, row.output_tokens)
        self.records.append(record)
        for attempt in range(self.habits.tries):
            try:
                await self._attempt(arrival, record)
            except TailraceError as error:
                refusal = Refusal(self.clock.now(), error.status, error.code or error.type, error.retry_after)
                record.refusals.append(refusal)
                if refusal.retry_after is None or attempt + 1 == self.habits.tries:
                    break
                await asyncio.sleep(max(1, math.ceil(refusal.retry_after)))
            else:
                break

    async def _attempt(self, arrival: Arrival, record: Record) -> None:
        timeline = Timeline(self.clock)
        tenant = DEFAULT_TENANT if self.fcfs else arrival.client
        place = self.pipeline.door(tenant=tenant)
        try:
            timeline.enter(Phase.RENDER)
            asked = request(arrival, self._max_tokens(arrival))
            self.answers.expect(asked.id, arrival.output)
            session = await Session.open(self.pipeline, place, [asked], timeline, _caller(tenant))
        finally:
            place.release()
            _note(record, timeline)
        try:
            async for _, events in session:
                if (facts := events[-1].facts) is not None:
                    record.preemptions = facts.preemptions
                    record.cost = facts.standard_seconds or 0.0
            await session.finish()
        finally:
            await session.close()
            answer = self.answers.take(asked.id)
        timeline.close("ok")
        assert answer is not None
        record.worst_gap = answer.worst_gap
        record.finish(timeline, self.clock.now())

    def _max_tokens(self, arrival: Arrival) -> int:
        """Lowered to what the context leaves, as the protocol does."""
        prompt, context = arrival.row.input_tokens, self.pipeline.backend.caps.max_context
        if prompt >= context:
            raise ContextLengthExceeded(f"the prompt has {prompt} tokens; the context is {context}", param="prompt")
        return min(self.habits.max_tokens or arrival.output, context - prompt)


def _caller(tenant: str) -> Caller:
    return Caller(Principal(tenant, "trace", frozenset(("inference",))))


def _note(record: Record, timeline: Timeline) -> None:
    """What was decided about it, also when that was a refusal."""
    record.request_class = str(timeline.facts.get("class", record.request_class))
    predicted = timeline.facts.get("predicted_ttft")
    if isinstance(predicted, float):
        record.predicted_ttft = predicted
