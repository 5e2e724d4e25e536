"""Engines that do not go on: when that is noticed, what becomes of requests, and when the process gives up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.backends.fake import FakeBackend
from tailrace.control.watchdog import EVERY, Watchdog
from tailrace.errors import Unavailable
from tailrace.types import Pulse
from tests.control.test_pipeline import Plane, read


class Watched(Plane):
    def __init__(self, **control: Any) -> None:
        super().__init__(**control)
        self.watchdog: Watchdog = self.pipeline.watchdog

    async def pass_by(self, seconds: float, beats: int | None = None, **pulse: Any) -> None:
        """Looks go on for that long; the engine makes a beat at each, or stays at `beats`."""
        for number in range(round(seconds / EVERY)):
            self.clock.advance(EVERY)
            self.fake.beat = Pulse(beats if beats is not None else number, True, **pulse)
            self.watchdog.look()
        await self.watchdog.settled()

    def reasons(self) -> list[str]:
        return [incident.reason for incident in self.watchdog.incidents]


async def test_work_that_goes_on_is_left_alone() -> None:
    plane = Watched()
    await plane.pass_by(1000)
    assert plane.reasons() == []


async def test_nothing_to_do_is_no_stall() -> None:
    plane = Watched()
    for _ in range(1000):
        plane.clock.advance(EVERY)
        plane.watchdog.look()
    assert plane.reasons() == []


async def test_running_requests_get_their_error_and_waiting_ones_run_afterwards() -> None:
    plane = Watched(slots=1)
    first, second = await plane.admit(), await plane.admit()
    running, waiting = asyncio.create_task(read(first)), asyncio.create_task(read(second))
    await asyncio.sleep(0)
    await plane.pass_by(30, beats=7)
    assert plane.reasons() == []
    await plane.pass_by(2, beats=7)
    assert plane.reasons() == ["stalled"]
    with pytest.raises(Unavailable) as told:
        await running
    assert (told.value.code, told.value.status, told.value.retry_after) == ("engine_stalled", 503, 1.0)
    while not waiting.done():
        plane.fake.step()
        await asyncio.sleep(0)
    assert sum(len(event.token_ids) for event in await waiting) == 3
    assert plane.counts() == (0, 0)
    assert plane.sample("engine_restarts_total", reason="stalled") == 1
    assert [(one["model"], one["requests"], one["restarted"]) for one in plane.watchdog.report()] == [("fake", 1, True)]


async def test_a_step_that_is_expected_to_take_long_may() -> None:
    plane = Watched()
    await plane.pass_by(290, beats=7, expected=10.0)
    assert plane.reasons() == []
    await plane.pass_by(20, beats=7, expected=10.0)
    assert plane.reasons() == ["stalled"]


async def test_a_process_that_stood_still_has_waited_for_nothing() -> None:
    plane = Watched()
    await plane.pass_by(20, beats=7)
    plane.clock.advance(100_000)
    await plane.pass_by(5, beats=7)
    assert plane.reasons() == []
    await plane.pass_by(6, beats=7)
    assert plane.reasons() == ["stalled"]


async def test_without_a_bound_only_faults_count() -> None:
    plane = Watched(stall_timeout=0)
    await plane.pass_by(10_000, beats=7)
    assert plane.reasons() == []
    await plane.pass_by(1, fault="crashed")
    assert plane.reasons() == ["crashed"]
    assert plane.fake.restarts == 1


async def test_a_restart_that_fails_is_tried_again_until_it_is_given_up() -> None:
    plane = Watched(slots=1)
    waits = [await plane.admit(), await plane.admit()]
    tasks = [asyncio.create_task(read(run)) for run in waits]
    await asyncio.sleep(0)
    plane.fake.broken = MemoryError("no room")
    await plane.pass_by(1, fault="crashed")
    for _ in range(3):
        await plane.pass_by(1)
    assert plane.reasons() == ["crashed", "restart_failed", "restart_failed", "restart_failed"]
    assert plane.fake.restarts == 3
    assert plane.watchdog.hopeless.is_set()
    assert [incident.restarted for incident in plane.watchdog.incidents] == [True, True, True, False]
    for task in tasks:
        with pytest.raises(Unavailable, match="send the request again"):
            await task
    assert (await plane.pipeline.health()).reason == "an engine was given up"


async def test_old_restarts_are_forgotten() -> None:
    plane = Watched()
    for _ in range(10):
        await plane.pass_by(1, fault="crashed")
        plane.clock.advance(300)
    assert plane.fake.restarts == 10
    assert not plane.watchdog.hopeless.is_set()


async def test_no_restarts_where_none_are_wanted() -> None:
    plane = Watched(max_restarts=0)
    await plane.pass_by(1, fault="crashed")
    assert plane.watchdog.hopeless.is_set()
    assert plane.fake.restarts == 0


async def test_backends_that_come_and_go_are_not_mistaken_for_each_other() -> None:
    plane = Watched()
    await plane.pass_by(25, beats=7)
    plane.pipeline.shut(plane.fake)
    plane.fake = FakeBackend()
    plane.pipeline.open(plane.fake)
    await plane.pass_by(25, beats=7)
    assert plane.reasons() == []


async def test_the_looks_go_on_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.control.watchdog.EVERY", 0.0)
    plane = Watched(max_restarts=0)
    plane.fake.beat = Pulse(fault="crashed")
    plane.watchdog.start()
    await asyncio.wait_for(plane.watchdog.hopeless.wait(), 120)
    await plane.watchdog.stop()
