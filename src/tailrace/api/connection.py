"""uvicorn's HTTP protocol with two bounds that it lacks, so that no client can fill the memory of all; and it calls who
wants to know that the client has left, so that no task has to ask for it.

A request's head: collecting an endless URL or header also holds up every other connection. And how long a client may
leave its answer lying, which is kept for it until it has taken it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tailrace.api.wire import LEAVERS, Leavers

MAX_HEAD = 256 * 1024  # bytes beyond the first read, by far more than any client sends
MAX_STALL = 60.0  # seconds
LINGER = 2.0  # seconds in which a refused client may read why


class BoundedConnection(HttpToolsProtocol):
    """Answers 431 and closes when a head grows beyond MAX_HEAD; closes when for MAX_STALL a client has not taken what
    fills its buffer, which counts as its leaving."""

    max_stall = MAX_STALL

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = False
        self._head_bytes = 0
        self._stalled: asyncio.TimerHandle | None = None
        self._refused: asyncio.TimerHandle | None = None
        self._leavers: Leavers = set()

    def data_received(self, data: bytes) -> None:
        if self._refused is not None:
            return
        begun = self._in_head
        super().data_received(data)
        if not (begun and self._in_head):
            self._head_bytes = 0
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD:
            self._refuse_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self.scope["state"][LEAVERS] = self._leavers

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self.max_stall, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._moving()

    def connection_lost(self, exc: Exception | None) -> None:
        self._moving()
        if self._refused is not None:
            self._refused.cancel()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # which keeps all this for its time, where a connection breaks
        for leave in tuple(self._leavers):
            leave()

    def _moving(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _refuse_head(self) -> None:
        """Closing at once would reset the connection, for what is still on its way, and the client might lose the
        answer: so what comes is dropped until the client has gone or had its time."""
        if self.cycle is None or self.cycle.response_complete:  # not into the middle of another answer
            message = f"The request's URL and headers have more than {MAX_HEAD} bytes"
            error = {"message": message, "type": "invalid_request_error", "param": None, "code": "head_too_large"}
            body = orjson.dumps({"error": error})
            self.transport.write(
                b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body)
            )
            self.transport.write_eof()
            self._refused = self.loop.call_later(LINGER, self.transport.close)
        else:
            self.transport.close()
