"""What a scrape shows of queues, backends and predictions: the state at that moment, whatever happened before."""

from __future__ import annotations

import asyncio
from typing import Any

from tailrace.backends.fake import BLOCK
from tailrace.control.intake import Caller
from tailrace.control.run import Run
from tailrace.figures.buckets import Buckets
from tailrace.observe.timeline import Timeline
from tailrace.types import Accelerator, Traits
from tests.control.test_pipeline import Plane, read

MODEL = {"model": "fake"}


async def admit(plane: Plane, **fields: Any) -> Run:
    place = plane.pipeline.door()
    caller = Caller(traits=Traits(**fields))
    try:
        return (await plane.pipeline.admit(place, [plane.request()], Timeline(plane.clock), caller))[0]
    finally:
        place.release()


def queue(plane: Plane, request_class: str) -> tuple[float, float]:
    at = {"class": request_class}
    return plane.sample("queue_requests", **at), plane.sample("queue_oldest_seconds", **at)


async def test_queues_by_class_and_since_when_they_wait() -> None:
    plane = Plane(slots=1)
    first = await admit(plane)
    waiting = [await admit(plane, tools=True)]
    plane.clock.advance(4)
    waiting += [await admit(plane, tools=True), await admit(plane, service_tier="batch")]
    plane.clock.advance(2)
    assert queue(plane, "interactive") == (0, 0)
    assert queue(plane, "agent") == (2, 6)
    assert queue(plane, "background") == (1, 2)
    await first.close()  # the oldest of the agents' starts
    assert queue(plane, "agent") == (1, 2)
    for run in waiting:
        await run.close()
    assert [queue(plane, name) for name in ("interactive", "agent", "background")] == [(0, 0)] * 3
    assert plane.counts() == (0, 0)


async def test_what_a_backend_holds() -> None:
    plane = Plane(slots=2)
    total = sum(plane.sample("kv_tokens", state=state, **MODEL) for state in ("used", "cached", "free"))
    run = await admit(plane)
    task = asyncio.create_task(read(run))
    await asyncio.sleep(0)
    assert plane.sample("sequences_running", **MODEL) == 1
    assert plane.sample("kv_tokens", state="used", **MODEL) == BLOCK
    assert plane.sample("kv_tokens", state="free", **MODEL) == total - BLOCK
    plane.fake.step(5)
    await task
    assert plane.sample("kv_tokens", state="used", **MODEL) == 0
    assert plane.sample("kv_tokens", state="free", **MODEL) == total


async def test_the_worst_gap_is_the_longest_without_a_token() -> None:
    plane = Plane(slots=1)
    run = await plane.admit(tokens=4)
    for seconds in (9.0, 0.5, 2.0, 1.0):  # the first is the way to the first token
        reading = asyncio.ensure_future(anext(run))
        await asyncio.sleep(0)  # it waits for a step now
        plane.clock.advance(seconds)
        plane.fake.step()
        await reading
    assert run.worst_gap == 2.0
    await run.close()


async def test_devices_are_shown_where_a_backend_publishes_them() -> None:
    plane = Plane()
    at = {"device": "gpu0", **MODEL}
    assert plane.metrics.registry.get_sample_value("tailrace_accelerator_busy_ratio", at) is None
    plane.fake.accelerators = (Accelerator("gpu0", 0.75, 30, 100),)
    assert plane.sample("accelerator_busy_ratio", **at) == 0.75
    assert plane.sample("accelerator_memory_bytes", state="used", **at) == 30
    assert plane.sample("accelerator_memory_bytes", state="free", **at) == 70


async def test_steps_are_shown_as_they_are_tallied() -> None:
    plane = Plane()
    tally = plane.fake.inspect().tally
    for seconds, rows in ((0.004, 1), (0.06, 3)):
        tally.seconds.add(seconds)
        tally.decode_rows.add(rows)
    assert plane.sample("step_seconds_count", **MODEL) == 2
    assert plane.sample("step_seconds_bucket", le="0.005", **MODEL) == 1
    assert plane.sample("step_decode_rows_sum", **MODEL) == 4


async def test_predictions_are_held_against_what_came() -> None:
    plane = Plane(slots=1)
    reading = asyncio.create_task(read(await admit(plane)))
    await asyncio.sleep(0)
    plane.fake.step(9)
    await reading
    at = {"quantity": "ttft", **MODEL}
    assert plane.sample("actual_over_predicted_count", **at) == 1
    assert plane.sample("prediction_ratio", quantity="ttft", percentile="p50") > 0


async def test_a_fair_order_and_a_drain_are_shown() -> None:
    plane = Plane()
    plane.pipeline.served.add("default", 2.0, plane.clock.now())
    assert plane.sample("fairness_index") == 1.0
    assert plane.sample("draining") == 0
    plane.pipeline.begin_drain()
    assert plane.sample("draining") == 1


def test_buckets_count_up_to_their_bounds() -> None:
    buckets = Buckets((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 7.0):
        buckets.add(value)
    assert (buckets.up_to(), buckets.seen, buckets.sum) == ([2, 3, 4], 4, 10.0)
