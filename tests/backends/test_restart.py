"""An engine that hangs or breaks is replaced behind its backend: what its requests get, and what goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from tailrace.backends.engine import EngineBackend
from tailrace.clock import SystemClock
from tailrace.config import EngineConfig
from tailrace.engine.build import build_engine
from tailrace.engine.fake_runner import FakeRunner
from tailrace.engine.parts import EngineParts, Renewed
from tailrace.engine.runner import Runner
from tailrace.engine.step import StepPlan, StepResult
from tailrace.engine.turns import Arbiter, Beside
from tailrace.errors import Unavailable
from tailrace.llm.fleet import Fleet
from tailrace.types import FinishReason
from tests.backends.test_engine import collect, tokens
from tests.engine.support import VOCAB, by_definition, parts, request
from tests.engine.test_native_exactness import BLOCK
from tests.serving import until
from tests.tiny import write_tiny_gguf

STALLED = Unavailable("it hangs", code="engine_stalled", retry_after=1.0)


class Hanging:
    """A runner whose steps, from one on, return when `go_on` is set. `came` says that one hangs."""

    def __init__(self, inner: Runner, after: int) -> None:
        self.go_on, self.came = Event(), Event()
        self._inner = inner
        self._left = after

    def forward(self, plan: StepPlan) -> None:
        self._inner.forward(plan)

    def sample(self, plan: StepPlan) -> StepResult:
        self._left -= 1
        if self._left < 0:
            self.came.set()
            assert self.go_on.wait(300)
        return self._inner.sample(plan)


def renewable(runner: Runner) -> EngineParts:
    """With this runner first, and plain ones after it."""

    def renew() -> Renewed:
        fresh = parts(slots=4)
        return Renewed(fresh.scheduler, fresh.runner, None, renew)

    return replace(parts(slots=4, runner=runner), renew=renew)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    runner = Hanging(FakeRunner(64, vocab=VOCAB), after=3)
    yield runner
    runner.go_on.set()


async def hung(backend: EngineBackend, runner: Hanging) -> None:
    """Return when a step hangs, all that came before is delivered, and the pulse says so."""
    assert await asyncio.to_thread(runner.came.wait, 120)
    await asyncio.sleep(0)
    pulse = backend.pulse()
    assert pulse.busy
    assert backend.pulse() == pulse


async def test_requests_of_a_hung_engine_end_and_the_next_run(hanging: Hanging) -> None:
    backend = EngineBackend(renewable(hanging), "m", SystemClock())
    backend.start()
    thread = backend.engine._thread
    assert thread is not None
    tasks = [asyncio.ensure_future(collect(backend, request(f"r{i}", 8, 20, n=i + 1))) for i in range(2)]
    await hung(backend, hanging)
    woken = asyncio.Event()
    backend.on_room(woken.set)
    restarting = asyncio.ensure_future(backend.restart(STALLED))
    await asyncio.sleep(0)
    assert backend.load().free_slots == 0
    assert (await backend.health()).reason == "the engine is being restarted"
    early = asyncio.ensure_future(collect(backend, request("early")))
    await restarting
    assert woken.is_set()
    assert tokens(await early) == by_definition(request())
    for index, events in enumerate(await asyncio.gather(*tasks)):
        ends = [event for event in events if event.finish is not None]
        assert [event.index for event in ends] == list(range(index + 1))
        assert {event.finish for event in ends} == {FinishReason.ERROR}
        assert {event.error for event in ends} == {STALLED}
    assert (await backend.health()).ok
    assert backend.load().free_slots == 4
    one = request("r0", 8, 20)
    assert tokens(await collect(backend, one)) == by_definition(one)
    # The step returns after all: its thread ends by itself, and what it says is not heard.
    hanging.go_on.set()
    await asyncio.to_thread(thread.join, 120)
    assert not thread.is_alive()
    assert tokens(await collect(backend, one)) == by_definition(one)
    assert backend.pulse().fault == ""
    backend.close()


async def test_counts_go_on_over_a_restart(hanging: Hanging) -> None:
    backend = EngineBackend(renewable(hanging), "m", SystemClock())
    backend.start()
    task = asyncio.ensure_future(collect(backend, request("a", 8, 20)))
    await hung(backend, hanging)
    await backend.restart(STALLED)
    await task
    assert backend.load().computed_tokens == 10
    await collect(backend, request("b", 8, 2))
    assert backend.load().computed_tokens == 19
    backend.close()


async def test_a_thread_that_ends_by_a_fault_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    backend = EngineBackend(renewable(FakeRunner(64, vocab=VOCAB)), "m", SystemClock())

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    backend.engine._obey = broken  # type: ignore[method-assign]
    backend.start()
    task = asyncio.ensure_future(collect(backend, request("a")))
    await until(lambda: backend.pulse().fault)
    assert backend.pulse().fault == "crashed"
    assert "ended by a fault" in caplog.text
    await backend.restart(STALLED)
    assert [event.error for event in await task] == [STALLED]
    assert tokens(await collect(backend, request("a"))) == by_definition(request())
    backend.close()


async def test_steps_that_keep_failing_are_a_fault() -> None:
    class Broken(FakeRunner):
        def sample(self, plan: StepPlan) -> StepResult:
            raise ZeroDivisionError

    backend = EngineBackend(renewable(Broken(64, vocab=VOCAB)), "m", SystemClock())
    backend.start()
    for number in range(3):
        assert backend.pulse().fault == ""
        await collect(backend, request(f"r{number}"))
    assert backend.pulse().fault == "failing"
    backend.close()


async def test_closing_does_not_wait_for_ever(hanging: Hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.engine.loop.STOP_GRACE", 0.01)
    backend = EngineBackend(renewable(hanging), "m", SystemClock())
    backend.start()
    task = asyncio.ensure_future(collect(backend, request("a", 8, 20)))
    await hung(backend, hanging)
    backend.close()
    task.cancel()


async def test_when_one_engine_keeps_the_team_all_leave_it(hanging: Hanging) -> None:
    arbiter = Arbiter()
    beside = Beside(arbiter, None, 2, lambda: beside)
    holder = EngineBackend(replace(renewable(hanging), turns=arbiter.join()), "m", SystemClock())
    other = EngineBackend(replace(renewable(FakeRunner(64, vocab=VOCAB)), turns=arbiter.join()), "n", SystemClock())
    holder.start()
    other.start()
    held = asyncio.ensure_future(collect(holder, request("a", 8, 20)))
    await hung(holder, hanging)
    waits = asyncio.ensure_future(collect(other, request("b", 8, 2)))
    assert other.pulse().fault == ""
    arbiter.give_up()
    assert holder.pulse().fault == "team_lost"
    await until(lambda: other.pulse().fault)
    await asyncio.gather(holder.restart(STALLED), other.restart(STALLED))
    assert (await held)[-1].error is (await waits)[-1].error is STALLED
    one = request("b", 8, 2)
    assert tokens(await collect(other, one)) == tokens(await collect(holder, one)) == by_definition(one)
    holder.close()
    other.close()


async def test_real_weights_answer_the_same_after_a_restart(tmp_path: Path) -> None:
    """Other threads and an empty cache over the same weights, while a step of the first engine still hangs."""
    config = EngineConfig(threads=2, isa="portable", kv_memory=40 * BLOCK, kv="bf16", weights="int8")
    build = partial(build_engine, write_tiny_gguf(tmp_path / "tiny.gguf"), config, SystemClock())
    plain = EngineBackend(build(), "m", SystemClock())
    plain.start()
    one = request("a", 100, 20)
    right = tokens(await collect(plain, one))
    plain.close()
    made = build()
    runner = Hanging(made.runner, after=5)
    backend = EngineBackend(replace(made, runner=runner), "m", SystemClock())
    backend.start()
    for _ in range(2):  # the second time nothing hangs, and it is made anew all the same
        task = asyncio.ensure_future(collect(backend, one))
        await asyncio.sleep(0)
        if not runner.came.is_set():
            await hung(backend, runner)
        await backend.restart(STALLED)
        assert (await task)[-1].finish is FinishReason.ERROR
        assert tokens(await collect(backend, one)) == right
    runner.go_on.set()
    assert tokens(await collect(backend, one)) == right
    backend.close()


async def test_models_of_one_server_leave_the_team_that_one_hangs_in(tmp_path: Path) -> None:
    files = [write_tiny_gguf(tmp_path / f"{name}.gguf") for name in "ab"]
    config = EngineConfig(
        model=str(files[0]), more_models=(str(files[1]),), threads=2, isa="portable", kv_memory=40 * BLOCK, kv="bf16",
        store=str(tmp_path / "store"),
    )  # fmt: skip
    fleet = Fleet(config, SystemClock())
    loaded = [fleet.load(name) for name in "ab"]
    one, two = (each.backend for each in loaded)
    assert isinstance(one, EngineBackend)
    assert isinstance(two, EngineBackend)
    asked = request("r", 100, 20)
    right = tokens(await collect(two, asked))
    runner = Hanging(one.engine._runner, after=5)
    one.engine._runner = runner
    held = asyncio.ensure_future(collect(one, asked))
    await hung(one, runner)
    waits = asyncio.ensure_future(collect(two, asked))
    await asyncio.sleep(0)
    await one.restart(STALLED)
    await until(lambda: two.pulse().fault)
    await two.restart(STALLED)
    assert [(await task)[-1].finish for task in (held, waits)] == [FinishReason.ERROR] * 2
    both = await asyncio.gather(collect(one, asked), collect(two, asked))
    assert [tokens(events) for events in both] == [right, right]
    runner.go_on.set()
    assert tokens(await collect(two, asked)) == right
    for each in loaded:
        each.close()
