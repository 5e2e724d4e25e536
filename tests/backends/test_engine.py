"""The engine as a backend: streams across threads, hang-ups, deadlines, room, draining."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from threading import Semaphore

import pytest

from tailrace.backends.engine import EngineBackend
from tailrace.clock import ManualClock, SystemClock
from tailrace.engine.fake_runner import FakeRunner
from tailrace.engine.step import StepPlan, StepResult
from tailrace.errors import ContextLengthExceeded, InvalidRequest, Unavailable
from tailrace.types import FinishReason, GenerateRequest, TokenEvent
from tests.engine.support import VOCAB, by_definition, parts, prompt, request, seeded


class Gated(FakeRunner):
    """Takes a step only when the test lets it."""

    def __init__(self) -> None:
        super().__init__(64, vocab=VOCAB)
        self._gate = Semaphore(0)
        self._open = False

    def sample(self, plan: StepPlan) -> StepResult:
        assert self._open or self._gate.acquire(timeout=120)
        return super().sample(plan)

    def let(self, steps: int) -> None:
        self._gate.release(steps)

    def open(self) -> None:
        self._open = True
        self._gate.release()


@pytest.fixture
async def backend() -> AsyncIterator[EngineBackend]:
    backend = EngineBackend(parts(slots=4), "m", SystemClock())
    backend.start()
    yield backend
    backend.close()


@pytest.fixture
async def gated() -> AsyncIterator[tuple[EngineBackend, Gated]]:
    runner = Gated()
    backend = EngineBackend(parts(slots=4, runner=runner), "m", SystemClock())
    backend.start()
    yield backend, runner
    runner.open()
    backend.close()


async def collect(backend: EngineBackend, one: GenerateRequest) -> list[TokenEvent]:
    return [event async for events in backend.generate(one) for event in events]


def tokens(events: list[TokenEvent], index: int = 0) -> list[int]:
    return [token for event in events if event.index == index for token in event.token_ids]


async def test_requests_run_together_and_each_gets_its_own(backend: EngineBackend) -> None:
    many = [request(f"r{i}", prompt(20 + i, i), 10 + i, sampling=seeded(i)) for i in range(12)]
    found = await asyncio.gather(*[collect(backend, one) for one in many])
    assert [tokens(events) for events in found] == [by_definition(one) for one in many]
    for events in found:
        assert [event.finish for event in events if event.finish] == [FinishReason.LENGTH]
        assert events[-1].facts is not None


async def test_all_events_of_a_step_come_together(gated: tuple[EngineBackend, Gated]) -> None:
    backend, runner = gated
    stream = backend.generate(request(n=3, max_tokens=2, sampling=seeded()))
    runner.let(1)
    assert [event.index for event in await anext(stream)] == [0, 1, 2]
    runner.let(1)
    assert [event.finish for event in await anext(stream)] == [FinishReason.LENGTH] * 3
    assert [events async for events in stream] == []


async def test_a_slow_reader_finds_everything_at_once(gated: tuple[EngineBackend, Gated]) -> None:
    backend, runner = gated
    stream = backend.generate(request("slow", 8, 30))
    runner.let(1)
    assert len(await anext(stream)) == 1
    runner.open()
    await collect(backend, request("other", 8, 60))
    assert len(await anext(stream)) == 29


async def test_closing_the_iterator_aborts_within_a_step(gated: tuple[EngineBackend, Gated]) -> None:
    backend, runner = gated
    stream = backend.generate(request("left", 8, 1000))
    runner.let(1)
    await anext(stream)
    assert backend.load().free_slots == 3
    room = asyncio.Event()
    backend.on_room(room.set)
    await stream.aclose()  # type: ignore[attr-defined]
    steps = runner.steps
    runner.let(1)
    await asyncio.wait_for(room.wait(), 120)
    assert runner.steps <= steps + 1
    assert backend.load() == replace(
        backend.load(), running=0, waiting=0, free_slots=4, kv_blocks_free=64, kv_blocks_total=64
    )


async def test_abort_ends_the_stream(gated: tuple[EngineBackend, Gated]) -> None:
    backend, runner = gated
    stream = backend.generate(request("a", 8, 1000, n=2))
    runner.let(1)
    await anext(stream)
    await backend.abort("a")
    await backend.abort("unknown")
    runner.let(1)
    rest = [event async for events in stream for event in events]
    assert [event.finish for event in rest if event.finish] == [FinishReason.ABORT] * 2


def open_on_abort(backend: EngineBackend, runner: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine stands still until it has been told to abort."""
    told = backend.engine.abort

    def abort(request_id: str | None) -> None:
        told(request_id)
        runner.open()

    monkeypatch.setattr(backend.engine, "abort", abort)


async def test_a_deadline_that_passed_aborts(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Gated()
    backend = EngineBackend(parts(runner=runner), "m", ManualClock(now=100.0))
    open_on_abort(backend, runner, monkeypatch)
    backend.start()
    stream = backend.generate(request(max_tokens=1000), deadline=99.0)
    events = [event async for events in stream for event in events]
    assert [event.finish for event in events if event.finish] == [FinishReason.ABORT]
    assert len(tokens(events)) <= 1
    backend.close()


async def test_load_counts_what_was_submitted_at_once(gated: tuple[EngineBackend, Gated]) -> None:
    backend, runner = gated
    tasks = [asyncio.ensure_future(collect(backend, request(f"r{i}", 8, 3, n=3))) for i in range(2)]
    await asyncio.sleep(0)
    load = backend.load()
    assert load.running + load.waiting == 6
    assert load.free_slots == 0
    runner.open()
    await asyncio.gather(*tasks)
    assert (backend.load().running, backend.load().waiting, backend.load().free_slots) == (0, 0, 4)


async def test_match_prefix_sees_what_ran_before(backend: EngineBackend) -> None:
    assert backend.match_prefix(prompt(200)) == 0
    await collect(backend, request(tokens=200))
    assert backend.match_prefix(prompt(200)) == 192
    assert backend.match_prefix(prompt(200), b"salt") == 0


async def test_requests_that_can_never_run_raise_at_once(backend: EngineBackend) -> None:
    with pytest.raises(ContextLengthExceeded):
        await collect(backend, request(tokens=1000, max_tokens=100))
    with pytest.raises(InvalidRequest, match="at most 4"):
        await collect(backend, request(n=5))
    assert backend.load().free_slots == 4


async def test_an_id_in_use_is_refused(gated: tuple[EngineBackend, Gated]) -> None:
    backend, runner = gated
    first = asyncio.ensure_future(collect(backend, request("same")))
    await asyncio.sleep(0)
    with pytest.raises(InvalidRequest, match="already running"):
        await collect(backend, request("same"))
    runner.open()
    assert tokens(await first) == by_definition(request())


async def test_seeds_are_drawn_per_request_unless_given() -> None:
    def make() -> EngineBackend:
        backend = EngineBackend(parts(), "m", SystemClock(), seeds=random.Random(5))
        backend.start()
        return backend

    unseeded = replace(seeded(), seed=None)
    answers = []
    for backend in (make(), make()):
        for name in ("a", "b"):
            answers.append(tokens(await collect(backend, request(name, 8, 20, sampling=unseeded))))
        backend.close()
    assert answers[0] != answers[1]
    assert answers[:2] == answers[2:]


async def test_draining_lets_running_requests_finish_and_refuses_new_ones(gated: tuple[EngineBackend, Gated]) -> None:
    backend, runner = gated
    running = asyncio.ensure_future(collect(backend, request("a", 8, 20)))
    await asyncio.sleep(0)
    draining = asyncio.ensure_future(backend.drain(60))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await collect(backend, request("late"))
    assert (await backend.health()).reason == "draining"
    runner.open()
    await draining
    assert tokens(await running) == by_definition(request(max_tokens=20))


async def test_what_does_not_finish_in_time_is_aborted(
    gated: tuple[EngineBackend, Gated], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, runner = gated
    open_on_abort(backend, runner, monkeypatch)
    running = asyncio.ensure_future(collect(backend, request("a", 8, 1000)))
    await asyncio.sleep(0)
    await backend.drain(0)
    assert (await running)[-1].finish is FinishReason.ABORT


async def test_health_follows_the_thread(backend: EngineBackend) -> None:
    assert (await backend.health()).ok
    await collect(backend, request())
    assert (await backend.health()).detail["steps"] == 4
    backend.close()
    assert not (await backend.health()).ok


@pytest.mark.parametrize(("steps", "kept"), [(49, []), (50, ["kept"])])
async def test_closing_keeps_step_costs_that_were_learned_long_enough(steps: int, kept: list[str]) -> None:
    said: list[str] = []
    backend = EngineBackend(replace(parts(), keep_costs=lambda: said.append("kept")), "m", SystemClock())
    backend.start()
    await collect(backend, request(max_tokens=steps))
    backend.close()
    assert said == kept
