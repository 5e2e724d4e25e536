"""A stream of server-sent events whose status goes out as late as it may."""

from __future__ import annotations

from starlette.types import Send

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies must not collect events
]


class EventStream:
    """`open` commits status 200; then events, pings, and one `end`."""

    def __init__(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        self._send = send
        self._headers = headers
        self.opened = False

    async def open(self) -> None:
        self.opened = True
        await self._send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, *self._headers]})

    async def write(self, events: bytes) -> None:
        await self._send({"type": "http.response.body", "body": events, "more_body": True})

    async def ping(self) -> None:
        """A comment, which clients skip; it keeps idle connections open."""
        await self.write(b": waiting\n\n")

    async def end(self, events: bytes) -> None:
        await self._send({"type": "http.response.body", "body": events, "more_body": False})
