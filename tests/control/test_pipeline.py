"""A request's way through control: order, bounds, one end, nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailrace.backends.base import Backend
from tailrace.backends.fake import FakeBackend, say
from tailrace.backends.faulty import Fault, FaultyBackend, Kind
from tailrace.clock import ManualClock
from tailrace.config import ControlConfig
from tailrace.control.lengths import LengthBook
from tailrace.control.pipeline import Pipeline
from tailrace.control.run import Run
from tailrace.control.session import Session
from tailrace.errors import InternalError, InvalidRequest, QueueFull, RateLimited, Unavailable
from tailrace.observe.metrics import Metrics
from tailrace.observe.timeline import Timeline
from tailrace.types import (
    EngineFacts,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    StopConditions,
    TokenEvent,
)
from tests.serving import until


class Plane:
    """A pipeline with a hand-moved clock and a backend that steps when told."""

    def __init__(self, backend: Backend | None = None, slots: int = 2, **control: Any) -> None:
        self.clock = ManualClock()
        self.fake = FakeBackend(clock=self.clock, max_sequences=slots, manual=True)
        self.metrics = Metrics()
        self.pipeline = Pipeline(backend or self.fake, ControlConfig(**control), self.clock, self.metrics)
        self.serial = 0

    def request(self, n: int = 1, prompt: int = 4, tokens: int = 3) -> GenerateRequest:
        self.serial += 1
        stop = StopConditions(tokens, ignore_eos=True)
        return GenerateRequest(f"r{self.serial}", "fake", np.ones(prompt, np.int32), SamplingParams(), stop, n=n)

    async def admit(self, **fields: Any) -> Run:
        place = self.pipeline.door()
        try:
            return (await self.pipeline.admit(place, [self.request(**fields)], Timeline(self.clock)))[0]
        finally:
            place.release()

    def sample(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"tailrace_{name}", labels) or 0.0

    def counts(self) -> tuple[int, int]:
        running, waiting = self.sample("requests_running"), self.sample("requests_waiting")
        assert (running, waiting) == (self.pipeline.running, self.pipeline.waiting)
        return int(running), int(waiting)


async def read(run: Run) -> list[TokenEvent]:
    events: list[TokenEvent] = []
    try:
        async for batch in run:
            events += batch
    finally:
        await run.close()
    return events


async def test_requests_start_in_order_as_room_appears() -> None:
    plane = Plane(slots=2)
    runs = [await plane.admit() for _ in range(4)]
    tasks = [asyncio.create_task(read(run)) for run in runs]
    await until(lambda: len(plane.fake.started_ids) == 2)
    assert plane.counts() == (2, 2)
    plane.fake.step(3)
    await until(lambda: len(plane.fake.started_ids) == 4)
    assert plane.counts() == (2, 0)
    plane.fake.step(3)
    events = await asyncio.gather(*tasks)
    assert plane.fake.started_ids == ["r1", "r2", "r3", "r4"]
    assert [sum(len(e.token_ids) for e in es) for es in events] == [3, 3, 3, 3]
    assert plane.counts() == (0, 0)
    assert plane.sample("generated_tokens_total") == 12


async def test_the_backend_never_gets_more_than_it_can_start() -> None:
    plane = Plane(slots=3)
    runs = [await plane.admit(n=n) for n in (2, 2, 1)]
    tasks = [asyncio.create_task(read(run)) for run in runs]
    await until(lambda: plane.fake.started_ids == ["r1", "r3"])
    assert plane.fake.load().waiting == 0
    assert plane.counts() == (2, 1)  # the second does not fit; the third is less work, and passes it
    plane.fake.step(3)
    await until(lambda: len(plane.fake.started_ids) == 3)
    plane.fake.step(3)
    await asyncio.gather(*tasks)
    assert plane.fake.started_ids == ["r1", "r3", "r2"]


async def test_the_queue_is_bounded_in_requests_and_counted_once() -> None:
    plane = Plane(slots=1, max_waiting_requests=2)
    runs = [await plane.admit() for _ in range(3)]
    with pytest.raises(QueueFull) as caught:
        plane.pipeline.door()
    assert caught.value.retry_after is not None
    assert plane.sample("rejects_total", reason="queue_full") == 1
    assert plane.counts() == (1, 2)
    await runs[2].close()
    place = plane.pipeline.door()
    assert plane.counts() == (1, 2)
    with pytest.raises(QueueFull):
        plane.pipeline.door()
    place.release()
    place.release()
    assert plane.counts() == (1, 1)
    for run in runs:
        await run.close()
    assert plane.counts() == (0, 0)


async def test_the_queue_is_bounded_in_prompt_tokens() -> None:
    plane = Plane(slots=1, max_waiting_tokens=10)
    runs = [await plane.admit(), await plane.admit(prompt=6)]
    with pytest.raises(QueueFull) as caught:
        await plane.admit(prompt=5)
    assert caught.value.code == "queue_tokens_full"
    runs.append(await plane.admit(prompt=4))
    assert plane.counts() == (1, 2)
    with pytest.raises(QueueFull):
        plane.pipeline.door()  # full already: refused before any work on the prompt
    for run in runs:
        await run.close()


async def test_several_prompts_are_admitted_together_or_not_at_all() -> None:
    plane = Plane(slots=1, max_waiting_tokens=10)
    first = await plane.admit()
    waiting = await plane.admit(prompt=5)
    place = plane.pipeline.door(2)
    with pytest.raises(QueueFull):
        await Session.open(
            plane.pipeline, place, [plane.request(prompt=3), plane.request(prompt=3)], Timeline(plane.clock)
        )
    assert plane.counts() == (1, 3)
    place.release()
    assert plane.counts() == (1, 1)
    await asyncio.gather(first.close(), waiting.close())


async def test_retry_after_follows_the_measured_drain() -> None:
    plane = Plane(slots=1, max_waiting_requests=1)
    runs = [await plane.admit(), await plane.admit()]
    plane.clock.advance(6)
    with pytest.raises(QueueFull) as caught:
        await plane.admit()
    likely = 6.0 * log(10)  # nothing has left for 6 s: by then nine in ten of such have
    assert likely <= caught.value.retry_after <= 1.1 * likely  # a little jitter
    for run in runs:
        await run.close()


async def test_leaving_while_waiting_never_starts() -> None:
    plane = Plane(slots=1)
    runs = [await plane.admit(), await plane.admit(), await plane.admit()]
    tasks = [asyncio.create_task(read(run)) for run in runs]
    await until(lambda: plane.fake.started_ids == ["r1"])
    tasks[1].cancel()
    await asyncio.wait({tasks[1]})
    assert plane.counts() == (1, 1)
    plane.fake.step(3)
    await until(lambda: len(plane.fake.started_ids) == 2)
    plane.fake.step(3)
    await asyncio.gather(tasks[0], tasks[2])
    assert plane.fake.started_ids == ["r1", "r3"]


async def test_leaving_while_running_frees_the_slot_for_the_next() -> None:
    plane = Plane(slots=1)
    runs = [await plane.admit(tokens=100), await plane.admit()]
    tasks = [asyncio.create_task(read(run)) for run in runs]
    await until(lambda: plane.fake.started_ids == ["r1"])
    plane.fake.step()
    await until(lambda: runs[0].generated == 1)
    tasks[0].cancel()
    await until(lambda: len(plane.fake.started_ids) == 2)
    assert plane.fake.load().running == 1
    assert plane.sample("cancel_seconds_count", model="fake") == plane.fake.load().aborts == 1
    plane.fake.step(3)
    await tasks[1]
    assert plane.sample("generated_tokens_total") == 4
    assert plane.counts() == (0, 0)
    assert plane.fake.load().kv_blocks_free == plane.fake.load().kv_blocks_total


async def test_a_choice_that_ended_makes_room_before_the_others_end() -> None:
    plane = Plane(slots=2)
    plane.fake._script = lambda request, index: b"ab" * (1 if index == 0 else 50)
    first = await plane.admit(n=2, tokens=20)
    first.request = GenerateRequest(**{**_fields(first.request), "stop": StopConditions(20)})
    second = await plane.admit(tokens=2)
    tasks = [asyncio.create_task(read(first)), asyncio.create_task(read(second))]
    await until(lambda: plane.fake.started_ids == ["r1"])
    plane.fake.step(3)  # choice 0 says two letters and its end
    await until(lambda: plane.fake.started_ids == ["r1", "r2"])
    assert plane.counts() == (2, 0)
    plane.fake.step(20)
    await asyncio.gather(*tasks)


def _fields(request: GenerateRequest) -> dict[str, Any]:
    return {name: getattr(request, name) for name in request.__slots__}


def fails(kind: Kind, after: int = 0, error: Exception | None = None) -> Callable[[GenerateRequest], Fault | None]:
    return lambda request: Fault(kind, after, error) if request.id == "r1" else None


@pytest.mark.parametrize("kind", [Kind.RAISE, Kind.ERROR, Kind.END])
@pytest.mark.parametrize("after", [0, 2])
async def test_a_fault_ends_its_request_alone(kind: Kind, after: int) -> None:
    inner = FakeBackend(script=say("a long enough answer"))
    plane = Plane(FaultyBackend(inner, fails(kind, after)))
    bad, good = await plane.admit(n=2), await plane.admit()
    with pytest.raises(InternalError) as caught:
        await read(bad)
    assert "planned" not in caught.value.message
    assert len(await read(good)) == 3
    assert plane.counts() == (0, 0)
    assert inner.load().free_slots == 4


async def test_a_typed_error_of_the_backend_is_the_callers() -> None:
    plane = Plane(FaultyBackend(FakeBackend(), fails(Kind.RAISE, 0, InvalidRequest("too long", param="prompt"))))
    with pytest.raises(InvalidRequest, match="too long"):
        await read(await plane.admit())
    assert plane.counts() == (0, 0)


async def test_closing_a_hanging_request() -> None:
    plane = Plane(FaultyBackend(FakeBackend(), fails(Kind.HANG, 1)))
    run = await plane.admit()
    task = asyncio.create_task(read(run))
    await until(lambda: run.generated == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert plane.counts() == (0, 0)


async def test_several_prompts_run_at_once_and_end_once() -> None:
    plane = Plane(slots=2)
    requests = [plane.request(tokens=n) for n in (1, 3, 2)]
    place = plane.pipeline.door(3)
    session = await Session.open(plane.pipeline, place, requests, Timeline(plane.clock))
    place.release()
    got: dict[int, int] = {}

    async def consume() -> None:
        async for prompt, batch in session:
            got[prompt] = got.get(prompt, 0) + sum(len(event.token_ids) for event in batch)

    task = asyncio.create_task(consume())
    for started in (2, 3):
        await until(lambda started=started: len(plane.fake.started_ids) == started)
        plane.fake.step(3)
    await task
    usage = await session.finish()
    await session.close()
    assert got == {0: 1, 1: 3, 2: 2}
    assert (usage.prompt_tokens, usage.completion_tokens) == (12, 6)
    assert plane.counts() == (0, 0)


async def test_one_failing_prompt_ends_the_others_of_its_request() -> None:
    plane = Plane(FaultyBackend(inner := FakeBackend(), fails(Kind.ERROR, 1)))
    requests = [plane.request(tokens=50) for _ in range(3)]
    place = plane.pipeline.door(3)
    session = await Session.open(plane.pipeline, place, requests, Timeline(plane.clock))
    with pytest.raises(InternalError):
        async for _ in session:
            pass
    await session.close()
    assert plane.counts() == (0, 0)
    assert inner.load().running == 0


async def test_draining_refuses_new_work_and_finishes_the_old() -> None:
    plane = Plane(slots=1)
    runs = [await plane.admit(), await plane.admit()]
    tasks = [asyncio.create_task(read(run)) for run in runs]
    drain = asyncio.create_task(plane.pipeline.drain(60))
    await until(lambda: plane.pipeline.draining)
    with pytest.raises(Unavailable) as caught:
        plane.pipeline.door()
    assert (caught.value.status, caught.value.retry_after is not None) == (503, True)
    assert not (await plane.pipeline.health()).ok
    for started in (1, 2):
        await until(lambda started=started: len(plane.fake.started_ids) == started)
        assert not drain.done()
        plane.fake.step(3)
    await asyncio.gather(*tasks)
    await drain


async def test_when_the_time_is_up_the_rest_get_a_typed_error() -> None:
    plane = Plane(slots=1)
    tasks = [asyncio.create_task(read(await plane.admit())) for _ in range(2)]
    await until(lambda: plane.fake.started_ids == ["r1"])
    await plane.pipeline.drain(0)
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, Unavailable)
        assert result.code == "draining"
    assert plane.fake.started_ids == ["r1"]
    assert plane.counts() == (0, 0)


async def test_a_request_past_the_door_when_draining_begins_is_refused() -> None:
    plane = Plane()
    place = plane.pipeline.door()
    plane.pipeline.begin_drain()
    with pytest.raises(Unavailable):
        await plane.pipeline.admit(place, [plane.request()], Timeline(plane.clock))
    place.release()
    await plane.pipeline.drain(60)


async def test_an_idle_server_drains_at_once() -> None:
    plane = Plane()
    await plane.pipeline.drain(60)
    assert plane.pipeline.draining


async def test_many_random_departures_leave_nothing_behind() -> None:
    import random

    rng = random.Random(3)
    plane = Plane(backend := FakeBackend(max_sequences=4), max_waiting_requests=400)

    async def visit() -> None:
        run = await plane.admit(n=rng.choice((1, 1, 2, 3)), tokens=rng.randrange(1, 12))
        leave_after = rng.randrange(0, 15)
        seen = 0
        try:
            async for batch in _limited(run, leave_after):
                seen += len(batch)
        finally:
            await run.close()

    async def _limited(run: Run, batches: int) -> AsyncIterator[list[TokenEvent]]:
        for _ in range(batches):
            batch = await anext(run, None)
            if batch is None:
                return
            yield list(batch)

    await asyncio.gather(*(visit() for _ in range(300)))
    assert plane.counts() == (0, 0)
    load = backend.load()
    assert (load.running, load.waiting, load.kv_blocks_free) == (0, 0, load.kv_blocks_total)
    assert plane.pipeline.dispatch.room().starts == 4


async def test_whatever_ends_a_request_its_hold_is_settled_once() -> None:
    """Random ends - by itself, by its client, by a fault, while it waits for limits or for room - leave no hold."""
    import random

    from tailrace.control.limits.base import Account, Amounts, caps
    from tailrace.control.tenants import Tenants
    from tailrace.policy import DEFAULT_TENANT, Policy, Quota, TenantPolicy

    rng = random.Random(5)
    quota = Quota(requests_per_minute=100_000, output_tokens_per_minute=400, concurrency=6)
    tenants = Tenants(Policy((TenantPolicy(DEFAULT_TENANT, limits=quota),)))
    clock = ManualClock()
    kinds = (Kind.RAISE, Kind.ERROR, Kind.END)
    faults = lambda request: Fault(rng.choice(kinds), 1) if rng.random() < 0.2 else None  # noqa: E731
    backend = FaultyBackend(FakeBackend(max_sequences=4), faults)
    pipeline = Pipeline(backend, ControlConfig(max_waiting_requests=500), clock, Metrics(), tenants=tenants)
    made = refused = 0

    async def visit(serial: int) -> None:
        nonlocal made, refused
        tokens = np.ones(4, np.int32)
        stop = StopConditions(rng.randrange(1, 12), ignore_eos=True)
        request = GenerateRequest(f"r{serial}", "fake", tokens, SamplingParams(), stop, n=rng.choice((1, 1, 2, 3)))
        place = pipeline.door()
        try:
            runs = await pipeline.admit(place, [request], Timeline(clock))
        except RateLimited:
            refused += 1
            return
        finally:
            place.release()
        run, leave_after = runs[0], rng.randrange(0, 15)
        try:
            async with asyncio.timeout(120):
                for _ in range(leave_after):
                    if await anext(run, None) is None:
                        break
        except (InternalError, Unavailable, RateLimited):
            pass  # a fault, or it has waited longer than it may
        finally:
            await run.close()
            await run.close()
            made += run.generated

    async def pass_time() -> None:
        while pipeline.waiting or pipeline.running:
            clock.advance(1.0)
            pipeline.limits.limiter.poke()
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(visit(serial)) for serial in range(200)]
    await asyncio.sleep(0)
    await pass_time()
    await asyncio.gather(*tasks)
    held, level = await pipeline.limits.limiter.store.standing(Account(DEFAULT_TENANT, caps(quota)))
    assert held == Amounts()
    assert level[2] <= made
    assert (pipeline.waiting, pipeline.running, pipeline.limits.limiter.waiting) == (0, 0, 0)
    assert made > 0
    await pipeline.close()


async def test_what_requests_turn_out_to_be_is_learned_and_kept(tmp_path: Path) -> None:
    clock = ManualClock()
    fake = FakeBackend(clock=clock, script=lambda request, index: b"0123456789")
    path = tmp_path / "control" / "lengths.json"
    pipeline = Pipeline(fake, ControlConfig(), clock, Metrics(), lengths=LengthBook(path))
    stop = StopConditions(200)
    for number in range(60):
        one = GenerateRequest(f"r{number}", "fake", np.full(4, 1 + number, np.int32), SamplingParams(), stop)
        place = pipeline.door()
        (run,) = await pipeline.admit(place, [one], Timeline(clock))
        place.release()
        await read(run)
    assert run.ticket.estimate.output_mean == pytest.approx(11, rel=0.35)
    assert run.prediction is not None
    ratios = {(name, part): ratio for name, part, ratio in pipeline.dispatch.foresight.quantiles()}
    assert set(name for name, _ in ratios) >= {"wait", "ttft", "tpot", "e2e", "device_seconds", "output_tokens"}
    await pipeline.close()
    kind = run.kind
    assert LengthBook(path).expect(kind, 200).q50 == pytest.approx(11, rel=0.15)


async def test_what_ends_while_it_waits_does_not_start_in_the_same_moment() -> None:
    plane = Plane(slots=1)
    first, second, third = [await plane.admit() for _ in range(3)]
    task = asyncio.create_task(read(first))
    await until(lambda: len(plane.fake.started_ids) == 1)
    second.fail(Unavailable("ended by an operator"))
    plane.fake.step(3)
    await task  # its slot is free now, and nobody has closed the second one
    assert second.started is None
    assert third.started is not None
    assert plane.counts() == (1, 1)
    with pytest.raises(Unavailable, match="operator"):
        await read(second)
    await third.close()
    assert plane.counts() == (0, 0)


async def test_what_was_released_and_never_given_to_a_backend_costs_nothing() -> None:
    plane = Plane(slots=1)
    run = await plane.admit()
    assert run.started is not None
    assert run.spent().prompt_tokens == 4
    await run.close()
    assert run.spent().prompt_tokens == 0
    assert plane.fake.started_ids == []


async def test_preemptions_are_counted_once_for_a_request_of_several_choices() -> None:
    plane = Plane()
    run = await plane.admit(n=2)
    for index, preemptions, again in ((0, 2, 30), (1, 3, 40)):
        facts = EngineFacts(finished=1.0, preemptions=preemptions, recomputed_tokens=again)
        run._finish(TokenEvent(index, finish=FinishReason.STOP, facts=facts))
    assert plane.sample("preemptions_total") == 3
    await run.close()
