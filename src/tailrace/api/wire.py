"""The two directions of a connection: a bounded body in, and the news that the client has hung up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from starlette.types import Receive, Scope

from tailrace.control.answering.off_loop import ON_LOOP_BYTES
from tailrace.errors import BodyTooLarge

T = TypeVar("T")
Leavers = set[Callable[[], None]]
LEAVERS = "leavers"  # in the state of a request's scope


class ClientGone(Exception):
    """The client closed the connection; nobody reads an answer."""


def header(scope: Scope, name: bytes) -> str | None:
    """The first of that name, in small letters."""
    found: bytes | None = scope["state"]["headers"].get(name)
    return None if found is None else found.decode("latin-1")


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Raises BodyTooLarge as soon as the size is known (before reading, where a length is stated), ClientGone."""
    stated = header(scope, b"content-length") or ""
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


def leavers(scope: Scope, body_bytes: int) -> Leavers | None:
    """Who our own connection calls when it is lost. None where its end has to be asked for: behind other servers, and
    behind a large body, since the web server stops reading then until somebody asks for more."""
    found: Leavers | None = scope["state"].get(LEAVERS)
    return found if body_bytes <= ON_LOOP_BYTES else None


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T], told: Leavers | None) -> T:
    """The work's result. When the client hangs up first, the work is cancelled, waited for, and ClientGone raised.

    `told`: of `leavers`; without it a task asks, since the web server tells a handler of a closed connection only then.
    """
    worker = asyncio.current_task()
    assert worker is not None
    left = False

    def leave() -> None:
        nonlocal left
        left = True
        worker.cancel()

    stop = _ask(receive, leave) if told is None else _join(told, leave)
    try:
        return await work
    except asyncio.CancelledError:
        if left and worker.uncancel() == 0:
            raise ClientGone from None
        raise
    finally:
        stop()


def _join(leavers: Leavers, leave: Callable[[], None]) -> Callable[[], None]:
    """Returns what ends it."""
    leavers.add(leave)
    return partial(leavers.discard, leave)


def _ask(receive: Receive, leave: Callable[[], None]) -> Callable[[], None]:
    """Returns what ends it."""

    def ended(watch: asyncio.Task[None]) -> None:
        if not watch.cancelled():
            watch.exception()  # a connection that breaks is closed
            leave()

    def stop() -> None:
        watch.remove_done_callback(ended)
        watch.cancel()

    watch = asyncio.create_task(_gone(receive))
    watch.add_done_callback(ended)
    return stop


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request body is larger than {limit} bytes")
