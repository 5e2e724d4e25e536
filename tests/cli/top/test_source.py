"""The screen over a real server's admin routes."""

from __future__ import annotations

import asyncio

import pytest
from textual.widgets import DataTable

from tailrace.backends.fake import FakeBackend
from tailrace.cli.top.app import Top
from tailrace.cli.top.command import run_top
from tailrace.cli.top.source import HttpSource
from tailrace.errors import ConfigError, TailraceError, Unauthorized, Unavailable
from tests.api.test_operator import POLICY
from tests.serving import live, make_state


async def test_a_real_server_is_shown_and_changed() -> None:
    state = make_state(FakeBackend(), policy=POLICY)
    async with live(state) as base:
        app = Top(HttpSource(base, "root"), every=1e6)
        async with app.run_test(size=(150, 40)) as pilot:
            await app.workers.wait_for_complete()
            await pilot.pause()
            tenants = app.query_one("#tenants", DataTable)
            assert [str(cell) for cell in tenants.get_row_at(0)] == ["acme", "2", "0", "0", "0.0", "concurrency 8"]
        source = HttpSource(base + "/v1", "root")
        await source.change("acme", {"weight": 5})
        assert state.pipeline.tenants["acme"].weight == 5
        with pytest.raises(TailraceError, match="No request nothing waits or runs"):
            await source.cancel("nothing")
        await source.close()


async def test_a_key_without_the_scope_is_told_which() -> None:
    async with live(make_state(FakeBackend(), policy=POLICY)) as base:
        source = HttpSource(base, "alice")
        with pytest.raises(Unauthorized, match="scope admin"):
            await source.state()
        await source.close()


def test_no_server_is_said_at_once() -> None:
    with pytest.raises(Unavailable, match="no answer from"):
        run_top("http://127.0.0.1:9", "", 1.0)
    with pytest.raises(ConfigError, match="--url"):
        run_top("localhost:8000", "", 1.0)


@pytest.mark.parametrize("body", ["[1, 2]", "{}", "null", '{"model": "x"}', "<html>"])
async def test_what_is_no_server_of_ours_is_said(body: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        source = HttpSource(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "")
        with pytest.raises(Unavailable, match=r"no answer from|no tailrace server"):
            await source.state()
        await source.close()
