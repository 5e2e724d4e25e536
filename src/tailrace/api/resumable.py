"""Streams that go on when their client drops, and are read on over another connection.

What a stream says goes into a `Stream` with a number to each event, and from there to whoever reads: at first the
connection that asked, later any that says which event it has last. The work ends when nobody reads for the time of
grace. Answers that are not streamed, and refusals, go straight to their client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from tailrace.api.sse import EVENTS, EventStream
from tailrace.api.state import AppState
from tailrace.api.wire import ClientGone, Leavers, header, leavers, while_connected
from tailrace.control.streams import LAST, Stream
from tailrace.errors import InvalidRequest, TailraceError

RESUMABLE = "x-tailrace-resumable"
_NAME = b"x-tailrace-stream"
PING = b": waiting\n\n"
_MOST_DIGITS = 15


class Carrier:
    """`send` is what an exchange sends to."""

    def __init__(self, state: AppState, tenant: str, send: Send) -> None:
        self._state = state
        self._tenant = tenant
        self._send = send
        self._stream: Stream | None = None
        self._reader: asyncio.Task[None] | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if EVENTS in message["headers"]:
                self._stream = self._state.streams.open(self._tenant)
                message["headers"].append((_NAME, self._stream.id.encode()))
            await self._send(message)
            if self._stream is not None:
                self._reader = asyncio.create_task(self._copy(self._stream))
        elif self._stream is None:
            await self._send(message)
        else:
            self._stream.write(message["body"])
            if not message.get("more_body", False):
                self._stream.end()

    async def carry(self, work: Coroutine[Any, Any, None], receive: Receive, told: Leavers | None) -> None:
        """Do the work. When the client leaves a stream, it goes on until nobody has read for too long.

        Raises what the work raises, and ClientGone when it was given up."""
        task = asyncio.create_task(work)
        try:
            await while_connected(receive, self._with_reader(task), told)
        except ClientGone:
            if self._stream is None:
                raise
            self._stream.abandoned = lambda: _cancel(task)
            await self._left()
            await _until_given_up(task)
        finally:
            task.cancel()
            await self._left()
            await asyncio.gather(task, return_exceptions=True)
            if self._stream is not None and not self._stream.ended:
                self._state.streams.drop(self._stream)
                self._stream.end()

    async def _with_reader(self, task: asyncio.Task[None]) -> None:
        await asyncio.shield(task)
        if self._reader is not None:
            await self._reader

    async def _left(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    async def _copy(self, stream: Stream) -> None:
        events = stream.read(-1, self._state.config.api.ping_interval)
        await copy(events, EventStream(self._send, [], PING))


class StreamReply(Response):
    """A stream from behind the event `after` on. What a Response prepares is never used."""

    def __init__(self, state: AppState, stream: Stream, after: int) -> None:
        """Raises NotFound for what is gone."""
        stream.check(after)
        self._state = state
        self._stream = stream
        self._after = after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        out = EventStream(send, [(_NAME, self._stream.id.encode())], PING)
        await out.open()
        work = copy(self._stream.read(self._after, self._state.config.api.ping_interval), out)
        await while_connected(receive, work, leavers(scope, 0))


async def copy(events: AsyncIterator[bytes], out: EventStream) -> None:
    """To a stream that is open, which it ends; with an error where what comes next is gone."""
    last = b""
    try:
        async for some in events:
            await (out.write(some) if some else out.ping())
    except TailraceError as error:
        last = b"event: error\ndata: " + orjson.dumps(error.body()) + b"\n\n"
    await out.end(last)


def wants_resuming(scope: Scope) -> bool:
    """Raises InvalidRequest."""
    value = header(scope, RESUMABLE.encode())
    if value not in (None, "true", "false"):
        raise InvalidRequest(f"the header {RESUMABLE} is {value[:40]!a}; expected 'true' or 'false'", param=RESUMABLE)
    return value == "true"


def last_event(scope: Scope, said: str | None = None) -> int:
    """The number of the event that a reader has last, by its header or by `starting_after`, if it `said` that; -1: it
    has none. Raises InvalidRequest."""
    name, value = (LAST, header(scope, LAST.encode())) if said is None else ("starting_after", said)
    if value is None:
        return -1
    if not (value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS):
        raise InvalidRequest(f"{name} is {value[:40]!a}; expected is the number of an event", param=name)
    return int(value)


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


async def _until_given_up(task: asyncio.Task[None]) -> None:
    """Raises ClientGone when it was."""
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled():
            raise ClientGone from None
        raise
