"""Models that come and go: loaded when asked for, unloaded when idle or in the way, and what becomes of who waits."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from threading import Event
from typing import Any

import pytest

from tailrace.backends.fake import FakeBackend, fake_tokenizer
from tailrace.clock import ManualClock
from tailrace.config import ControlConfig, EngineConfig
from tailrace.control.models import Loaded, Models, Served
from tailrace.control.pipeline import Pipeline
from tailrace.errors import ModelFileError, ModelNotFound, Unavailable
from tailrace.observe.metrics import Metrics
from tailrace.observe.timeline import Phase, Timeline
from tests.serving import until

SIZE = 100


class Shelf:
    """A loader whose models load when they are let, or fail."""

    def __init__(self) -> None:
        self.open = Event()
        self.open.set()
        self.broken: set[str] = set()
        self.loads: list[str] = []
        self.closed: list[str] = []

    def need(self, name: str) -> int:
        return SIZE

    def load(self, name: str) -> Loaded:
        self.loads.append(name)
        assert self.open.wait(60)
        if name in self.broken:
            raise ModelFileError(f"{name}.gguf is damaged")
        backend = FakeBackend()
        backend.caps = replace(backend.caps, models=(name,))
        return Loaded.of(
            backend, fake_tokenizer(), None, EngineConfig(), nbytes=SIZE, close=lambda: self.closed.append(name)
        )


class Place:
    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.shelf = Shelf()
        self.pipeline = Pipeline(None, ControlConfig(), self.clock, Metrics())
        self.models = Models(("a", "b", "c"), self.shelf, self.pipeline, self.clock, **options)

    def find(self, name: str) -> Served:
        return self.models.find(name, "default")

    async def hold(self, name: str, until: float | None = None) -> Loaded:
        return await self.models.hold(self.find(name), Timeline(self.clock), until)

    async def use(self, name: str) -> None:
        await self.hold(name)
        self.models.let_go(self.find(name))

    def states(self) -> dict[str, str]:
        return {served.name: served.state for served in self.models}


async def test_a_model_is_loaded_once_by_the_first_who_ask_and_stays() -> None:
    place = Place()
    assert place.states() == {"a": "unloaded", "b": "unloaded", "c": "unloaded"}
    place.shelf.open.clear()
    both = [asyncio.ensure_future(place.hold("b")) for _ in range(2)]
    await until(lambda: place.shelf.loads)
    assert place.states()["b"] == "loading"
    place.shelf.open.set()
    first, second = await asyncio.gather(*both)
    assert first is second
    assert (place.shelf.loads, place.find("b").users) == (["b"], 2)
    assert place.pipeline.lane("b").backend is first.backend
    await place.use("b")
    assert place.shelf.loads == ["b"]


async def test_waiting_for_a_model_is_part_of_the_queue_time() -> None:
    place = Place()
    timeline = Timeline(place.clock)
    place.shelf.open.clear()
    holding = asyncio.ensure_future(place.models.hold(place.find("a"), timeline))
    await until(lambda: place.shelf.loads)
    place.clock.advance(3)
    place.shelf.open.set()
    await holding
    timeline.enter(Phase.RENDER)
    place.clock.advance(1)
    assert timeline.parts()[Phase.LOAD] == 3_000_000


async def test_a_name_that_is_not_served_is_refused_with_those_that_are() -> None:
    with pytest.raises(ModelNotFound, match="served: a, b, c"):
        Place().find("d")
    assert Place().models.find(None, "default").name == "a"


async def test_a_request_does_not_wait_beyond_its_time_and_the_loading_goes_on() -> None:
    place = Place()
    place.shelf.open.clear()
    with pytest.raises(Unavailable) as refused:
        await place.hold("a", until=place.clock.now())
    assert (refused.value.code, place.find("a").users) == ("deadline_unattainable", 0)
    place.shelf.open.set()
    await until(lambda: place.find("a").loaded is not None)


async def test_a_model_that_does_not_load_fails_its_requests_and_no_other() -> None:
    place = Place()
    place.shelf.broken.add("b")
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"b could not be loaded: b\.gguf is damaged") as refused:
            await place.hold("b")
        assert refused.value.code == "model_load_failed"
    assert (place.shelf.loads, place.states()["b"]) == (["b"], "failed")
    await place.use("a")
    place.shelf.broken.clear()
    place.clock.advance(60)
    await place.use("b")
    assert place.states() == {"a": "loaded", "b": "loaded", "c": "unloaded"}


async def test_an_idle_model_makes_room_and_the_one_idle_for_longest_goes_first() -> None:
    place = Place(memory=2 * SIZE)
    for name in ("a", "b"):
        await place.use(name)
        place.clock.advance(1)
    await place.use("a")
    await place.use("c")
    assert place.states() == {"a": "loaded", "b": "unloaded", "c": "loaded"}
    assert place.shelf.closed == ["b"]
    assert [lane.backend.caps.models for lane in place.pipeline.lanes] == [("a",), ("c",)]


async def test_a_model_in_use_keeps_its_memory_and_the_other_is_refused_with_the_figures() -> None:
    place = Place(memory=SIZE)
    await place.hold("a")
    with pytest.raises(Unavailable, match="b needs 100 B; models may have 100 B, and 100 B are in use by a") as refused:
        await place.hold("b")
    assert (refused.value.code, refused.value.retry_after) == ("model_memory", 5.0)
    place.models.let_go(place.find("a"))
    place.clock.advance(60)
    await place.use("b")
    assert place.states() == {"a": "unloaded", "b": "loaded", "c": "unloaded"}


async def test_a_model_that_nobody_uses_is_unloaded_after_its_time() -> None:
    place = Place(keep_alive=10.0)
    await place.use("a")
    held = await place.hold("b")
    place.clock.advance(9)
    place.models._idle.due()
    await place.use("a")
    place.clock.advance(9)
    place.models._idle.due()
    assert place.states() == {"a": "loaded", "b": "loaded", "c": "unloaded"}
    place.clock.advance(1)
    place.models._idle.due()
    await until(lambda: place.shelf.closed == ["a"])
    assert place.find("b").model is held
    await place.use("a")
    assert place.shelf.loads == ["a", "b", "a"]


async def test_who_waits_for_a_model_is_told_when_the_server_stops() -> None:
    place = Place()
    place.shelf.open.clear()
    waiting = asyncio.ensure_future(place.hold("a"))
    await until(lambda: place.shelf.loads)
    place.models.stop()
    with pytest.raises(Unavailable, match="stopping"):
        await waiting
    place.shelf.open.set()
    with pytest.raises(Unavailable, match="stopping"):
        await place.hold("b")


async def test_who_leaves_while_it_loads_is_not_counted_any_more() -> None:
    place = Place()
    place.shelf.open.clear()
    waiting = asyncio.ensure_future(place.hold("a"))
    await until(lambda: place.shelf.loads)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert place.find("a").users == 0
    place.shelf.open.set()
    await place.use("a")
    assert place.shelf.loads == ["a"]


async def test_the_report_says_who_uses_what() -> None:
    place = Place(keep_alive=10.0)
    await place.use("a")
    await place.hold("b")
    place.clock.advance(4)
    a, b, c = place.models.report()
    assert (a["state"], a["idle_s"], a["unloaded_in_s"], a["memory_bytes"]) == ("loaded", 4.0, 6.0, SIZE)
    assert (b["state"], b["idle_s"], b["waiting"]) == ("loaded", None, 1)
    assert (c["state"], c["memory_bytes"], c["error"]) == ("unloaded", 0, None)
