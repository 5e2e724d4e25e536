"""What a request will experience, said before it does: wait, first token, token time, end, and how sure that is.

The cost model and the fair order give the value (forecast.py, work_ahead.py); the errors of past predictions put it
right and say how likely a bound is kept (prediction_error.py). Used by admission, and shown to callers and operators.
Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

from tailrace.backends.base import Backend
from tailrace.control.coming import Flow
from tailrace.control.first_token import FirstToken
from tailrace.control.forecast import Start, start
from tailrace.control.prediction_error import PredictionErrors
from tailrace.control.step_share import prompt_of
from tailrace.control.ticket import Ticket
from tailrace.control.token_time import Answer, token_seconds
from tailrace.control.work_ahead import Ahead
from tailrace.frozen import frozen
from tailrace.types import Outlook, Prefill, StepCosts

_LEAST = {"wait": 0.05, "ttft": 0.005, "tpot": 1e-4, "e2e": 0.01}  # differences below it do not count as errors
_MOST_LEFT = 16  # prompts that one finds when it starts, more are imagined as longer ones
_PACE_CHUNK, _PACE_ROWS = 256, 8  # a step by which learned and standard costs are compared


class Order(Protocol):
    def work_ahead(self, ticket: Ticket) -> Ahead:
        """What is expected to be served before a request with this ticket."""
        ...

    def coming(self, now: float) -> Sequence[Flow]:
        """What is expected to arrive."""
        ...


@frozen
class Around:
    """What else is here. `free` sequences could start now; `remaining` tokens are expected of each running answer;
    `pending` prompts are given to the backend and not yet seen in its outlook."""

    free: int
    remaining: Sequence[float] = ()
    pending: Sequence[Prefill] = ()


@frozen
class Times:
    """Seconds. `wait` until the start and `ttft` until the first token count from now; `tpot` is for each token."""

    wait: float
    ttft: float
    tpot: float
    e2e: float


@dataclass(slots=True)
class Prediction:
    """Medians, in seconds from when it was made. `model` is what they were before past errors put them right.

    Waiting and the first token are known at once. What comes behind it is played when somebody asks, from what was
    there when this was made: a request's first token does not wait for it."""

    kind: str
    wait: float
    ttft: float
    raw: tuple[float, float]  # wait and first token, before errors put them right
    _behind: Callable[[], tuple[float, float]]  # seconds a token, and tokens
    _errors: Mapping[str, PredictionErrors]
    _model: Times | None = None

    @property
    def model(self) -> Times:
        if self._model is None:
            wait, ttft = self.raw
            tpot, tokens = self._behind()
            self._model = Times(wait, ttft, tpot, ttft + tpot * tokens)
        return self._model

    @property
    def tpot(self) -> float:
        return self._errors["tpot"].right(self.kind, self.model.tpot)

    @property
    def e2e(self) -> float:
        return self._errors["e2e"].right(self.kind, self.model.e2e)

    def chance(self, seconds: float) -> float:
        """Probability of the first token within `seconds` from when this was made."""
        return self._errors["ttft"].chance(self.kind, self.raw[1], seconds)

    def wait_within(self, part: float) -> float:
        """Seconds within which it starts with probability `part`."""
        return self._errors["wait"].right(self.kind, self.raw[0], part) if self.raw[0] else 0.0

    def ttft_within(self, part: float) -> float:
        """Seconds that the first token is in time for with probability `part`."""
        return self._errors["ttft"].right(self.kind, self.raw[1], part)


class Foresight:
    def __init__(self, order: Order, backend: Backend, look: Callable[[Ticket], Around]) -> None:
        """`look` is asked at each prediction."""
        self._order = order
        self._backend = backend
        self._look = look
        self.errors = {name: PredictionErrors(least) for name, least in _LEAST.items()}
        self.errors |= {name: PredictionErrors() for name in ("device_seconds", "output_tokens", "kv_blocks")}

    def predict(self, ticket: Ticket, around: Around | None = None) -> Prediction:
        """For a request that waits already, or would come now. `around`: where that has been looked at already."""
        around, ahead = around or self._look(ticket), self._order.work_ahead(ticket)
        outlook = self._backend.outlook()
        if around.pending:
            outlook = replace(outlook, prefills=(*outlook.prefills, *around.pending))
        wait, ttft, behind = self._times(ticket, outlook, around, ahead)
        kind = f"{'waits' if wait else 'starts'} {ticket.bucket}"
        right_wait = self.errors["wait"].right(kind, wait) if wait else 0.0
        right_ttft = self.errors["ttft"].right(kind, ttft)
        return Prediction(kind, right_wait, right_ttft, (wait, ttft), behind, self.errors)

    def learn(self, prediction: Prediction, actual: Times) -> None:
        """How it turned out, of a request that made its tokens."""
        model = prediction.model
        for name in _LEAST:
            if name != "wait" or model.wait:
                self.errors[name].learn(prediction.kind, getattr(model, name), getattr(actual, name))

    def learn_cost(self, ticket: Ticket, device_seconds: float, output_tokens: float, blocks: int) -> None:
        """What a request took that ended by itself; `output_tokens` of a choice."""
        expected = ticket.estimate
        self.errors["device_seconds"].learn(ticket.bucket, expected.seconds, device_seconds)
        self.errors["output_tokens"].learn(ticket.bucket, expected.output_mean, output_tokens)
        self.errors["kv_blocks"].learn(ticket.bucket, expected.blocks, blocks)

    def pace(self, costs: StepCosts | None = None) -> float:
        """Seconds that a standard device-second takes now; `costs`: those of the backend's outlook, if known."""
        return _typical(costs or self._backend.outlook().costs) / _typical(self._backend.caps.costs)

    def quantiles(self) -> Iterator[tuple[str, float, float]]:
        """(quantity, quantile, actual / predicted) for the metrics."""
        for name, errors in self.errors.items():
            for part in (0.1, 0.5, 0.9):
                yield name, part, errors.quantile(part)

    def _times(
        self, ticket: Ticket, outlook: Outlook, around: Around, ahead: Ahead
    ) -> tuple[float, float, Callable[[], tuple[float, float]]]:
        """Until the start and the first token; and what gives (seconds a token, tokens) behind it."""
        expected, costs = ticket.estimate, outlook.costs
        own = self._own(ticket)
        wait = 0.0
        if ahead.requests >= 0.5 or around.free < expected.sequences:
            pace = self.pace(costs)
            begins = start(outlook, ahead.at(pace), around.free, around.remaining, self._token_seconds(ticket) * pace)
            wait = begins.seconds
            rows = max(len(around.remaining), outlook.decodes)
            outlook = replace(outlook, step_left=0.0, prefills=_alike(begins, own, costs), decodes=rows)
            remaining: Sequence[float] = ()
        else:
            remaining = around.remaining
        flows = self._order.coming(ticket.arrival)
        first = FirstToken(outlook, own, remaining, flows)

        def behind() -> tuple[float, float]:
            answer = Answer(max(expected.output_mean - 1.0, 0.0), expected.sequences, expected.prompt_tokens)
            there = outlook
            if there.above:
                there = replace(there, chunk=there.short_chunk, idle_chunk=there.short_chunk)
            return token_seconds(there, first, answer, flows), answer.tokens

        return wait, wait + first.seconds, behind

    def _own(self, ticket: Ticket) -> Prefill:
        known = ticket.estimate
        return prompt_of(ticket, max(known.uncached_tokens, 1), known.prompt_tokens - known.uncached_tokens)

    def _token_seconds(self, ticket: Ticket) -> float:
        """Standard device-seconds of one token of an answer like this one's."""
        costs = self._backend.caps.costs
        return (costs.decode + costs.kv * ticket.estimate.prompt_tokens) * self._backend.load().decode_markup


def _alike(begins: Start, own: Prefill, costs: StepCosts) -> tuple[Prefill, ...]:
    """Prompts that are there when it starts, each like the others. They came before it, and are due before it."""
    count = min(max(round(begins.prompts_left), 1), _MOST_LEFT)
    todo = round(begins.prefill_left / count / costs.prefill) if costs.prefill else 1
    due = own.deadline if own.deadline == inf else 0.0
    return (Prefill(max(todo, 1), 0, own.share_group, own.weight, deadline=due),) * count


def _typical(costs: StepCosts) -> float:
    return max(costs.step + costs.prefill * _PACE_CHUNK + costs.decode * _PACE_ROWS, 1e-9)
