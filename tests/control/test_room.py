"""Dispatch by KV memory: requests wait in control, where bounds and refusals see them, not inside the engine."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.backends.engine import EngineBackend
from tailrace.backends.fake import FakeBackend
from tailrace.clock import ManualClock
from tailrace.config import ControlConfig
from tailrace.control.pipeline import Pipeline
from tailrace.control.room import Given, room
from tailrace.control.run import Run
from tailrace.engine.sequence import Sequence, State
from tailrace.errors import QueueFull
from tailrace.observe.metrics import Metrics
from tailrace.observe.timeline import Timeline
from tailrace.types import Capabilities, GenerateRequest, LoadReport, TokenEvent
from tests.engine.support import VOCAB, by_definition, parts, prompt, request
from tests.serving import until

CAPS = Capabilities(("m",), 1024, VOCAB, 8, block_tokens=64)


@pytest.mark.parametrize(
    ("load", "given", "asked", "fits"),
    [
        (LoadReport(free_slots=8, free_blocks=3), Given(1, 0), (1, 192), True),
        (LoadReport(free_slots=8, free_blocks=3), Given(1, 0), (1, 193), False),  # a fourth block
        (LoadReport(free_slots=8, free_blocks=3), Given(1, 0), (2, 192), False),  # the second choice needs one too
        (LoadReport(free_slots=8, free_blocks=3), Given(1, 1), (1, 192), False),  # given before, not in the report
        (LoadReport(free_slots=8, free_blocks=3), Given(0, 0), (1, 900), True),  # idle: it starts or gets its error
        (LoadReport(running=1, free_slots=7, free_blocks=3), Given(0, 0), (1, 900), False),
        (LoadReport(waiting=1, free_slots=7, free_blocks=-4), Given(1, 0), (1, 1), False),
        (LoadReport(free_slots=8), Given(1, 0), (1, 900), True),  # memory unknown
        (LoadReport(free_slots=1, free_blocks=99), Given(1, 0), (2, 1), False),
        (LoadReport(running=2, free_slots=4, free_blocks=99), Given(3, 0), (2, 1), False),  # three not in the report
    ],
)
def test_what_fits(load: LoadReport, given: Given, asked: tuple[int, int], fits: bool) -> None:
    assert room(load, CAPS, given).fits(*asked) is fits


def test_what_could_start_is_bounded_by_memory() -> None:
    assert room(LoadReport(free_slots=8, free_blocks=3), CAPS, Given(1, 0)).starts == 3
    assert room(LoadReport(free_slots=8, free_blocks=-3), CAPS, Given(1, 0)).starts == 0
    assert room(LoadReport(free_slots=8, free_blocks=0), CAPS, Given(0, 0)).starts == 8
    assert room(LoadReport(free_slots=8), CAPS, Given(1, 0)).starts == 7


class Plane:
    """Control over the engine without weights; the test takes the engine's turns."""

    def __init__(self, blocks: int, slots: int = 32, most_waiting: int = 1000) -> None:
        self.clock = ManualClock()
        self.backend = EngineBackend(parts(blocks=blocks, slots=slots), "m", self.clock)
        config = ControlConfig(max_waiting_requests=most_waiting, max_waiting_tokens=1_000_000)
        self.pipeline = Pipeline(self.backend, config, self.clock, Metrics())
        self.scheduler = self.backend.engine.scheduler
        self.tasks: dict[str, asyncio.Task[list[TokenEvent]]] = {}
        self.requests: dict[str, GenerateRequest] = {}
        self.most_waiting = 0
        self.preempted = [0]  # how many of the engine's waiting had run before, by turn
        self.starts: list[str] = []

    async def ask(self, one: GenerateRequest) -> None:
        place = self.pipeline.door()
        try:
            run = (await self.pipeline.admit(place, [one], Timeline(self.clock)))[0]
        finally:
            place.release()
        self.requests[one.id] = one
        self.tasks[one.id] = asyncio.create_task(self._read(run))

    async def _read(self, run: Run) -> list[TokenEvent]:
        try:
            return [event async for batch in run for event in batch]
        finally:
            await run.close()

    async def settle(self) -> None:
        """Let readers and wake-ups run until nothing moves any more."""
        for _ in range(10):
            await asyncio.sleep(0)

    async def turn(self) -> None:
        """One turn of the engine, then everybody else's."""
        await self.settle()
        engine = self.backend.engine
        commands, engine._inbox = engine._inbox, []
        self.clock.advance(1.0)
        before = {sequence.group.request.id for sequence in self.scheduler.running}
        engine.turn(commands)
        self.scheduler.kv.check(self.scheduler.live_tables())
        self.starts += [s.group.request.id for s in self.scheduler.running if s.group.request.id not in before]
        self.most_waiting = max(self.most_waiting, self.scheduler.waiting_count)
        self.preempted.append(sum(s.preemptions > 0 for s in self.waiting()))
        await self.settle()

    def waiting(self) -> list[Sequence]:
        streams = self.backend._streams.values()
        return [s for stream in streams for s in stream.group.sequences if s.state is State.WAITING]

    async def finish(self, most: int = 5000) -> None:
        for _ in range(most):
            if all(task.done() for task in self.tasks.values()):
                return
            await self.turn()
        raise AssertionError("it does not end")

    def answered(self) -> None:
        """Everybody got the right tokens, and nothing is left behind."""
        for name, task in self.tasks.items():
            tokens = [token for event in task.result() for token in event.token_ids]
            assert tokens == by_definition(self.requests[name])
        load = self.backend.load()
        assert (load.running, load.waiting, load.kv_blocks_free) == (0, 0, load.kv_blocks_total)
        assert load.free_blocks == load.kv_blocks_total
        assert (self.pipeline.running, self.pipeline.waiting) == (0, 0)


def long(serial: int, tokens: int, answer: int) -> GenerateRequest:
    return request(f"r{serial}", prompt(tokens, serial), answer)


async def test_a_burst_of_long_prompts_waits_in_control() -> None:
    """Memory for two of the prompts, slots for 32: the engine never holds one it cannot start."""
    plane = Plane(blocks=8)
    for serial in range(20):
        await plane.ask(long(serial, 150, 12))  # 3 blocks to the end
    await plane.settle()
    assert (plane.pipeline.running, plane.pipeline.waiting) == (2, 18)
    await plane.finish()
    assert plane.most_waiting == 0
    assert plane.starts == [f"r{serial}" for serial in range(20)]
    plane.answered()


async def test_answers_that_grow_leave_at_most_one_waiting_in_the_engine() -> None:
    plane = Plane(blocks=10)
    for serial in range(16):
        await plane.ask(long(serial, 120 + 7 * serial % 64, 90))
    await plane.finish()
    assert plane.most_waiting <= 1
    plane.answered()


async def test_the_queue_is_full_in_control_when_memory_is() -> None:
    plane = Plane(blocks=8, most_waiting=3)
    asked = 0
    with pytest.raises(QueueFull) as caught:
        for asked in range(10):
            await plane.ask(long(asked, 150, 12))
    assert asked == 5  # two run, three wait
    assert caught.value.code == "queue_full"
    await plane.turn()
    with pytest.raises(QueueFull):
        await plane.ask(long(6, 150, 12))  # still, with 30 slots free
    await plane.finish()
    plane.answered()


async def test_a_prompt_as_large_as_the_memory_runs_alone() -> None:
    """It waits for the engine to be empty, is passed by no more than its own work, and those behind it follow."""
    plane = Plane(blocks=4)
    await plane.ask(long(0, 60, 4))
    await plane.ask(long(1, 250, 6))
    for serial in range(2, 12):
        await plane.ask(long(serial, 60, 4))
    await plane.finish()
    assert plane.most_waiting == 0
    place = plane.starts.index("r1")
    assert 1 <= place <= 5
    rest = [name for name in plane.starts if name != "r1"]
    assert rest == ["r0", *(f"r{serial}" for serial in range(2, 12))]
    plane.answered()


async def test_short_prompts_start_together_in_one_turn() -> None:
    plane = Plane(blocks=200, slots=16)
    for serial in range(20):
        await plane.ask(long(serial, 10, 3))
    await plane.turn()
    assert len(plane.starts) == 16
    await plane.finish()
    plane.answered()


async def test_a_preempted_sequence_has_its_blocks_kept_for_it() -> None:
    plane = Plane(blocks=5)
    plane.pipeline.dispatch.memory.overbook = 9.0  # or the second would wait for the first to end
    await plane.ask(long(0, 100, 120))  # 2 blocks, grows to 4
    await plane.ask(long(1, 60, 100))  # 1 block, grows to 3
    while not plane.scheduler.waiting_count:
        await plane.turn()
    await plane.ask(long(2, 60, 4))
    await plane.settle()
    assert plane.pipeline.waiting == 1  # it would take what the preempted one needs
    await plane.finish()
    assert plane.most_waiting == 1
    plane.answered()


async def test_choices_count_beside_the_prompt() -> None:
    plane = Plane(blocks=7)  # 2 for the first prompt, 4 for its choices to grow into, and 2 are wanted
    await plane.ask(request("two", prompt(100, 1), 5, n=4))
    await plane.ask(long(1, 100, 5))
    await plane.settle()
    assert (plane.pipeline.running, plane.pipeline.waiting) == (1, 1)
    await plane.finish()
    assert plane.most_waiting == 0
    assert [len(task.result()) for task in plane.tasks.values()] == [20, 5]


async def test_leaving_frees_blocks_for_the_next() -> None:
    plane = Plane(blocks=4)
    await plane.ask(long(0, 150, 100))
    await plane.ask(long(1, 150, 5))
    await plane.turn()
    assert plane.pipeline.waiting == 1
    plane.tasks.pop("r0").cancel()
    await plane.finish()
    plane.answered()


@settings(max_examples=25, deadline=None)
@given(
    blocks=st.integers(4, 12),
    sizes=st.lists(st.tuples(st.integers(1, 180), st.integers(2, 60)), min_size=1, max_size=12),
    turns=st.integers(0, 3),
)
def test_every_burst_is_answered(blocks: int, sizes: list[tuple[int, int]], turns: int) -> None:
    """Whatever fits alone gets its answer; the engine's own queue holds what it preempted, and one that found its
    blocks taken by answers that grew meanwhile."""

    async def burst() -> Plane:
        plane = Plane(blocks, slots=4)
        for serial, (tokens, answer) in enumerate(sizes):
            await plane.ask(long(serial, tokens, answer))
            for _ in range(turns):
                await plane.turn()
        await plane.finish()
        return plane

    plane = asyncio.run(burst())
    plane.answered()
    assert set(plane.starts) == {f"r{serial}" for serial in range(len(sizes))}
    assert plane.most_waiting <= 1 + max(plane.preempted)


async def test_the_fake_backend_has_memory_too() -> None:
    clock = ManualClock()
    fake = FakeBackend(clock=clock, max_sequences=8, kv_blocks=5, manual=True)  # blocks of 16 tokens
    pipeline = Pipeline(fake, ControlConfig(), clock, Metrics())
    place = pipeline.door(6)
    requests = [request(f"r{serial}", np.ones(20, np.int32), 2) for serial in range(6)]
    runs = await pipeline.admit(place, requests, Timeline(clock))
    tasks = [asyncio.create_task(_all(run)) for run in runs]
    for started in (2, 4, 6):
        await until(lambda started=started: len(fake.started_ids) == started)
        assert (fake.load().waiting, pipeline.waiting) == (0, 6 - started)
        fake.step(2)
    assert [tokens for tokens in await asyncio.gather(*tasks)] == [2] * 6
    assert fake.load().free_blocks == 5


async def _all(run: Run) -> int:
    try:
        return sum([len(event.token_ids) async for batch in run for event in batch])
    finally:
        await run.close()


async def test_an_answer_that_nobody_reads_holds_no_place_once_it_is_made() -> None:
    plane = Plane(blocks=64, slots=2)
    place = plane.pipeline.door()
    runs = await plane.pipeline.admit(place, [request("unread", prompt(5, 1), 4, n=2)], Timeline(plane.clock))
    unread = runs[0]
    place.release()
    first = asyncio.create_task(anext(unread))  # its reader takes the first events and no more
    await plane.turn()
    await plane.turn()  # the first step's events go out while the second is computed
    assert first.done() and first.result()
    for serial in range(4):
        await plane.ask(request(f"r{serial}", prompt(5, serial), 4))
    await plane.finish()
    plane.tasks["unread"] = asyncio.create_task(plane._read(unread))
    await plane.tasks["unread"]
    assert (plane.pipeline.running, plane.pipeline.waiting) == (0, 0)
