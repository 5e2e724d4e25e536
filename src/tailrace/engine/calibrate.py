"""A few timed steps at start, from which the cost model gets its prior. Leaves the KV cache as it found it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import numpy.typing as npt

from tailrace.clock import Clock
from tailrace.engine.cost import fit
from tailrace.engine.kv.manager import KvManager
from tailrace.engine.runner import Runner
from tailrace.engine.sequence import Group, Sequence
from tailrace.engine.step import Row, StepPlan, Work
from tailrace.engine.turns import Turns
from tailrace.types import GenerateRequest, Pooling, SamplingParams, StopConditions

_PREFILLS = ((64, 0), (16, 0), (64, 256), (128, 0))  # (tokens, context before them)
_DECODES = ((1, 64), (8, 64), (1, 512), (16, 64))  # (rows, context of each)
_PROMPTS = (16, 64, 128, 256)  # tokens
_MOST_ROUNDS = 5  # each shape's best counts: a neighbour's burst is not the machine's speed

Shape = Callable[[KvManager], "StepPlan | None"]
Between = Callable[[], AbstractContextManager[None]]


def calibrate(
    runner: Runner,
    kv: KvManager,
    clock: Clock,
    *,
    slots: int,
    max_context: int,
    budget: float = 1.5,
    turns: Turns | None = None,
    encoder: bool = False,
) -> npt.NDArray[np.float64]:
    """Coefficients for CostModel, from about `budget` seconds of steps, or one round where that takes longer. Shapes
    that don't fit are left out.

    All shapes take turns, so that a burst of a neighbour hits one round and not all repeats of one shape. With `turns`
    each step waits for those of the process' other engines.
    """
    between = nullcontext if turns is None else turns.taken
    shapes = _whole(max_context) if encoder else _shapes(slots, max_context)
    started = clock.now()
    _round(runner, kv, clock, shapes[:1], between)  # the first step pays for touching the weights
    rounds: list[list[tuple[Work, float]]] = []
    while not rounds or (len(rounds) < _MOST_ROUNDS and clock.now() - started < budget):
        rounds.append(_round(runner, kv, clock, shapes, between))
    return fit([min(samples, key=lambda sample: sample[1]) for samples in zip(*rounds, strict=True)])


def _round(
    runner: Runner, kv: KvManager, clock: Clock, shapes: list[Shape], between: Between
) -> list[tuple[Work, float]]:
    samples = (_measure(runner, kv, clock, shape, between) for shape in shapes)
    return [sample for sample in samples if sample is not None]


def _shapes(slots: int, max_context: int) -> list[Shape]:
    shapes: list[Shape] = []
    for (tokens, before), (rows, context) in zip(_PREFILLS, _DECODES, strict=True):
        if tokens + before < max_context:
            shapes.append(lambda kv, t=tokens, b=before: _prefill(kv, t, b))  # type: ignore[misc]
        if rows <= slots and context < max_context:
            shapes.append(lambda kv, r=rows, c=context: _decode(kv, r, c))  # type: ignore[misc]
    return shapes


def _whole(max_context: int) -> list[Shape]:
    """Of an encoder: prompts alone, each in one step."""
    return [lambda kv, t=tokens: _prompt(kv, t) for tokens in _PROMPTS if tokens <= max_context]  # type: ignore[misc]


def _measure(runner: Runner, kv: KvManager, clock: Clock, shape: Shape, between: Between) -> tuple[Work, float] | None:
    plan = shape(kv)
    if plan is None:
        return None
    with between():
        seconds = _timed(runner, clock, plan)
    for row in plan.rows:
        assert row.sequence.table is not None
        kv.release(row.sequence.table)
    return plan.work, max(seconds, 1e-6)


def _timed(runner: Runner, clock: Clock, plan: StepPlan) -> float:
    started = clock.now()
    runner.forward(plan)
    runner.sample(plan)
    return clock.now() - started


def _prefill(kv: KvManager, tokens: int, before: int) -> StepPlan | None:
    sequence = _sequence(kv, before + tokens, slot=0)
    if sequence is None:
        return None
    work = Work(prefill=tokens, attention=tokens * (before + tokens // 2))
    return StepPlan((Row(sequence, before, tokens),), (sequence,), (0,), work)


def _prompt(kv: KvManager, tokens: int) -> StepPlan | None:
    sequence = _sequence(kv, tokens, slot=0, pooling=Pooling.MEAN)
    if sequence is None:
        return None
    work = Work(prefill=tokens, attention=tokens * (tokens // 2))
    return StepPlan((Row(sequence, 0, tokens),), (), (), work, pooled=1)


def _decode(kv: KvManager, rows: int, context: int) -> StepPlan | None:
    sequences: list[Sequence] = []
    for slot in range(rows):
        sequence = _sequence(kv, context, slot)
        if sequence is None:
            for other in sequences:
                assert other.table is not None
                kv.release(other.table)
            return None
        sequences.append(sequence)
    planned = tuple(Row(sequence, context - 1, 1) for sequence in sequences)
    work = Work(decode=rows, kv_tokens=rows * context)
    return StepPlan(planned, tuple(sequences), tuple(range(rows)), work)


def _sequence(kv: KvManager, tokens: int, slot: int, pooling: Pooling | None = None) -> Sequence | None:
    prompt = np.arange(tokens, dtype=np.int32) % 97
    stop = StopConditions(max_tokens=int(pooling is None))
    request = GenerateRequest("calibrate", "", prompt, SamplingParams(temperature=0.0), stop, pooling=pooling)
    sequence = Group(request, 0, 0).sequences[0]
    table = kv.open(prompt, b"calibrate", reuse=False)
    if not kv.reserve(table, 0, tokens):
        kv.release(table)
        return None
    sequence.table = table
    sequence.slot = slot
    return sequence
