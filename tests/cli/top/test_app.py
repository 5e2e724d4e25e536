"""The screen, driven by keys: it follows the server, cancels, changes weights and limits, and survives faults."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

from tailrace.cli.top.app import Top
from tailrace.errors import Unavailable
from tests.cli.top.fake import FakeSource, run, state

Screen = tuple[Top, Pilot[None], FakeSource]


@asynccontextmanager
async def shown() -> AsyncIterator[Screen]:
    """A screen whose clock does not tick: it follows when `follow` is called."""
    source = FakeSource()
    app = Top(source, every=1e6)
    async with app.run_test(size=(150, 40)) as pilot:
        await settled(app, pilot)
        yield app, pilot, source


async def settled(app: Top, pilot: Pilot[None]) -> None:
    await app.workers.wait_for_complete(worker for worker in app.workers if worker.group == "follow")
    await pilot.pause()


def cells(app: Top, table: str) -> list[list[str]]:
    found = app.query_one(f"#{table}", DataTable)
    return [[str(cell) for cell in found.get_row_at(row)] for row in range(found.row_count)]


def text(app: Top, name: str) -> str:
    return str(app.query_one(f"#{name}", Static).render())


async def answer(pilot: Pilot[None], app: Top, words: str) -> None:
    await pilot.pause()
    app.screen.query_one(Input).value = words
    await pilot.press("enter")
    await settled(app, pilot)


async def follow(app: Top, pilot: Pilot[None]) -> None:
    app.follow()
    await settled(app, pilot)


async def test_everything_is_on_the_screen_and_follows() -> None:
    async with shown() as (app, pilot, source):
        assert source.asked == 1
        assert cells(app, "queues")[0] == ["interactive", "acme", "4", "900", "1.2 s"]
        assert cells(app, "running")[0] == [
            "chatcmpl-1", "acme", "interactive", "decode", "120", "64", "37/256", "4.0 s",
        ]  # fmt: skip
        assert cells(app, "tenants")[0] == ["acme", "3", "1", "4", "12.5", "requests_per_minute 60"]
        assert [row[0] for row in cells(app, "tails")] == ["queue", "TTFT", "end to end"]
        assert "some-model at http://fake" in text(app, "head")
        assert "50 in use, 20 cached, 30 free of 100 blocks" in text(app, "map")
        assert "prefill budget 128 tokens" in text(app, "step")
        assert "queue_full 7, draining 1" in text(app, "rejects")
        await pilot.press("down")
        source.now = state(running=[run("chatcmpl-0", age_s=9.0), run("chatcmpl-2", age_s=3.0)], draining=True)
        await follow(app, pilot)
        assert [row[0] for row in cells(app, "running")] == ["chatcmpl-0", "chatcmpl-2"]
        assert app.query_one("#running", DataTable).cursor_row == 1  # it stays on its request
        assert "stopping" in text(app, "head")
    assert source.closed


async def test_a_request_is_cancelled_when_that_is_meant() -> None:
    async with shown() as (app, pilot, source):
        await pilot.press("down", "c")
        await answer(pilot, app, "no")
        await pilot.press("c", "escape")
        await pilot.pause()
        assert (source.cancelled, len(app.screen_stack)) == ([], 1)
        await pilot.press("c")
        await answer(pilot, app, "yes")
        assert source.cancelled == ["chatcmpl-2"]
        assert source.asked == 2  # it looks at once


async def test_a_weight_and_a_limit_are_changed() -> None:
    async with shown() as (app, pilot, source):
        for key, words in (("w", "heavy"), ("w", "0"), ("l", "concurrency"), ("l", "concurrency=-1")):
            await pilot.press(key)
            await answer(pilot, app, words)
            assert repr(words) in text(app, "said")
        assert source.changed == []
        await pilot.press("w")
        await answer(pilot, app, "2.5")
        app.query_one("#tenants", DataTable).move_cursor(row=1)
        await pilot.press("l")
        await answer(pilot, app, "concurrency=8")
        assert source.changed == [("acme", {"weight": 2.5}), ("nightly", {"limits": {"concurrency": 8.0}})]


async def test_a_server_that_is_gone_paused_or_empty() -> None:
    async with shown() as (app, pilot, source):
        source.fault = Unavailable("no answer from http://fake")
        await follow(app, pilot)
        assert text(app, "said") == "no answer from http://fake"
        assert len(cells(app, "running")) == 2  # the last that was known
        source.fault = None
        await pilot.press("p")
        app._tick()
        await settled(app, pilot)
        assert source.asked == 2
        source.now = state(running=[], queues=[], tenants=[], rejects={}, prediction={})
        await pilot.press("p")
        app._tick()
        await settled(app, pilot)
        assert (source.asked, text(app, "said")) == (3, "")
        await pilot.press("c", "w", "l")
        await pilot.pause()
        assert len(app.screen_stack) == 1  # there is nothing to ask about
        assert "none" in text(app, "rejects")
