"""The two directions of a connection: a bounded body in, and the news that the client has hung up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.types import Receive

from tailrace.errors import BodyTooLarge

T = TypeVar("T")
_ON_LOOP_BYTES = 16 * 1024  # work on more text than this goes to a thread, so that other answers keep flowing


class ClientGone(Exception):
    """The client closed the connection; nobody reads an answer."""


async def read_body(headers: Headers, receive: Receive, limit: int) -> bytes:
    """Raises BodyTooLarge as soon as the size is known (before reading, where a length is stated), ClientGone."""
    stated = headers.get("content-length", "")
    if stated.isdigit() and int(stated) > limit:
        raise _too_large(limit)
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        if not message.get("more_body", False):
            return bytes(body)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The work's result. When the client hangs up first, the work is cancelled, waited for, and ClientGone raised.

    Needed for plain answers too: the web server tells a handler of a closed connection only when it is asked.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def off_loop(size: int, function: Callable[[], T]) -> T:
    """Run here when it is little work, in a thread when it is much."""
    if size <= _ON_LOOP_BYTES:
        return function()
    return await asyncio.to_thread(function)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request body is larger than {limit} bytes")
