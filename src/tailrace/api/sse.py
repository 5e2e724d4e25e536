"""A stream of server-sent events whose status goes out as late as it may."""

from __future__ import annotations

import asyncio

from starlette.types import Send

EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")
_HEADERS = [
    EVENTS,
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies must not collect events
]


class EventStream:
    """`open` commits status 200; then events, pings, and one `end`."""

    def __init__(self, send: Send, headers: list[tuple[bytes, bytes]], ping: bytes) -> None:
        """`ping` is something that clients skip; it keeps idle connections open."""
        self._send = send
        self._ping = ping
        self._headers = headers
        self.opened = False

    async def open(self) -> None:
        self.opened = True
        await self._send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, *self._headers]})

    async def write(self, events: bytes) -> None:
        await self._send({"type": "http.response.body", "body": events, "more_body": True})

    async def ping(self) -> None:
        await self.write(self._ping)

    async def end(self, events: bytes) -> None:
        await self._send({"type": "http.response.body", "body": events, "more_body": False})


class Pings:
    """Pings of a stream from `begin` on, until `end` returns; nothing when it never began."""

    def __init__(self, out: EventStream) -> None:
        self._out = out
        self._task: asyncio.Task[None] | None = None

    def begin(self, interval: float) -> None:
        """One now, then one each `interval` seconds."""
        self._task = asyncio.create_task(self._send(interval))

    async def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _send(self, interval: float) -> None:
        while True:
            await self._out.ping()
            await asyncio.sleep(interval)
