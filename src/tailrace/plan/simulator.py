"""Puts a simulation together and runs it: the real serving plane over the real engine, on a clock that jumps."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import field, replace
from functools import partial

from tailrace.backends.engine import EngineBackend
from tailrace.backends.fake import fake_tokenizer
from tailrace.clock import ManualClock
from tailrace.config import Config
from tailrace.control.pipeline import Pipeline
from tailrace.control.tenants import Tenants
from tailrace.engine.budget import ChunkBudget, FixedBudget
from tailrace.engine.kv.manager import BLOCK_TOKENS, KvManager
from tailrace.engine.limits import Limits
from tailrace.engine.parts import EngineParts
from tailrace.engine.stats import EngineStats
from tailrace.frozen import frozen
from tailrace.observe.metrics import Metrics
from tailrace.plan.baselines import Classic, scheduler
from tailrace.plan.clients import Clients, Habits
from tailrace.plan.engine import RecordedAnswers, VirtualEngine
from tailrace.plan.meter import Meter, Sample
from tailrace.plan.record import Record
from tailrace.plan.steps import Machine, StepTimes, cost_model
from tailrace.plan.virtual import run
from tailrace.plan.workload import Arrival, Scale, arrivals
from tailrace.policy import ClassRule, Policy, RequestClass, TenantPolicy
from tailrace.traces import TraceRow

CONTEXT = 8192  # where the settings leave it to the model


@frozen
class Setup:
    """What is simulated. `kv_tokens`: room of the KV cache in tokens."""

    config: Config = field(default_factory=Config)
    machine: Machine = field(default_factory=Machine)
    scale: Scale = field(default_factory=Scale)
    habits: Habits = field(default_factory=Habits)
    classic: Classic = field(default_factory=Classic)
    kv_tokens: int = 65_536
    sample_every: float = 1.0  # seconds between looks at who was served how much
    seed: int = 0


@frozen
class Outcome:
    """`seconds` of simulated time, from the first arrival to the last end; `took` of real time."""

    setup: Setup
    records: list[Record]
    stats: EngineStats
    steps: StepTimes
    served: list[Sample]
    seconds: float
    took: float


def simulate(rows: Sequence[TraceRow], setup: Setup) -> Outcome:
    """Raises ConfigError for a window without requests, or a trace without times."""
    started = time.perf_counter()
    clock = ManualClock()
    steps = StepTimes(setup.machine, setup.seed)
    asked = arrivals(rows, setup.scale, setup.seed)
    records, stats, served = run(clock, _simulated(asked, setup, clock, steps))
    ends = [record.end for record in records if record.end is not None]
    return Outcome(setup, records, stats, steps, served, max(ends, default=0.0), time.perf_counter() - started)


async def _simulated(
    asked: Sequence[Arrival], setup: Setup, clock: ManualClock, steps: StepTimes
) -> tuple[list[Record], EngineStats, list[Sample]]:
    answers = RecordedAnswers(clock)
    backend = _backend(setup, clock, steps, answers)
    backend.start()
    tenants = _tenants(setup, {arrival.client for arrival in asked})
    pipeline = Pipeline(backend, setup.config.control, clock, Metrics(), tenants=tenants, seed=setup.seed)
    clients = Clients(pipeline, answers, clock, setup.habits, setup.classic.fcfs)
    assert isinstance(backend.engine, VirtualEngine)
    meter = Meter(clients.records, backend.engine, clock, setup.sample_every)
    looking = asyncio.create_task(meter.run())
    await clients.send_all(asked)
    looking.cancel()
    backend.engine.scheduler.kv.check([])
    backend.close()
    return clients.records, backend.stats, meter.samples


def _tenants(setup: Setup, clients: set[str]) -> Tenants:
    """The configured ones, and one of weight 1 for each client that is none of them."""
    policy = setup.config.policy
    known = {tenant.name for tenant in policy.tenants}
    policy = replace(policy, tenants=(*policy.tenants, *(TenantPolicy(name) for name in sorted(clients - known))))
    if setup.classic.fcfs:
        policy = Policy(rules=(ClassRule(RequestClass.INTERACTIVE),))
    return Tenants(policy)


def _backend(setup: Setup, clock: ManualClock, steps: StepTimes, answers: RecordedAnswers) -> EngineBackend:
    engine = setup.config.engine
    context = engine.max_context or CONTEXT
    cost = cost_model(setup.machine)
    kv = KvManager(
        max(1, setup.kv_tokens // BLOCK_TOKENS),
        max_blocks=-(-context // BLOCK_TOKENS),
        prefix_cache=engine.prefix_cache,
    )
    limits = Limits(max_sequences=engine.max_sequences, max_context=context)
    budget: ChunkBudget = FixedBudget(engine.chunk_tokens) if engine.chunk_tokens else cost
    parts = EngineParts(scheduler(kv, limits, budget, setup.classic), answers, fake_tokenizer(), cost)
    seeds = random.Random(f"{setup.seed}/sampling")
    return EngineBackend(parts, "", clock, seeds=seeds, loop=partial(VirtualEngine, steps=steps))
