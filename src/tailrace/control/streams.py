"""Streams that can be read again from where a reader was cut off: server-sent events with a number each.

The events stay, whoever has read them: a server does not know what arrived. They stay in a bounded memory; what is too
old for it is gone, and a reader that needs it is told so. While nobody reads, whoever makes a stream is given notice
after a time of grace; one that has ended is forgotten after as long.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from itertools import islice
from os import urandom

from tailrace.clock import Clock
from tailrace.control.expiry import Expiry
from tailrace.errors import NotFound

LAST = "last-event-id"  # the header by which a reader says what it has
_EACH = 16  # a stream may have this part of all memory
_OVERHEAD = 128  # bytes of an event beside its text, roughly
_GAP = b"\n\n"


class Stream:
    """`write` events, `end` it once; `read` from behind any of its events. Made by `Streams.open`."""

    def __init__(self, stream_id: str, tenant: str, changed: Callable[[Stream], None], base: int = 0) -> None:
        """`changed` is called when it has grown, ended, or when readers came or went. `base`: its first number."""
        self.id = stream_id
        self.tenant = tenant
        self.size = 0  # bytes in memory
        self.readers = 0
        self.ended = False
        self.whole = False  # it has said all there was to say
        self.base = base
        self.abandoned: Callable[[], None] = _nothing  # called when nobody has read for the time of grace
        self._changed = changed
        self._events: deque[bytes] = deque()
        self._first = base  # number of the oldest event that is here
        self._more = asyncio.Event()

    def write(self, events: bytes) -> None:
        """Whole server-sent events. Comments keep connections open: they are none."""
        for event in events.split(_GAP):
            if event and not event.startswith(b":"):
                numbered = b"id: %d\n%b\n\n" % (self.next, event)
                self._events.append(numbered)
                self.size += len(numbered) + _OVERHEAD
        self._wake()

    def end(self, *, whole: bool = True) -> None:
        """Nothing more comes."""
        self.ended, self.whole = True, whole
        self._wake()

    @property
    def next(self) -> int:
        """The number of the event that comes next."""
        return self._first + len(self._events)

    def lose(self) -> None:
        """Its oldest event, to have room for others."""
        self.size -= len(self._events.popleft()) + _OVERHEAD
        self._first += 1

    async def read(self, after: int, idle: float) -> AsyncGenerator[bytes, None]:
        """What is behind the event of that number (-1: all), as it comes, to the end; b"" after `idle` seconds of
        nothing. Raises as `check`, later too for a reader that is too slow."""
        at = max(after + 1, self.base if after < 0 else 0)
        self.readers += 1
        self._changed(self)
        try:
            while True:
                more, there = self._more, self._from(at)
                if there:
                    at += len(there)
                    yield b"".join(there)
                elif self.ended:
                    return
                elif not await _within(idle, more.wait()):
                    yield b""
        finally:
            self.readers -= 1
            self._changed(self)

    def check(self, after: int) -> None:
        """Raises NotFound where some of what follows that event is gone, or there is no such event."""
        after = max(after, self.base - 1 if after < 0 else 0)
        if after + 1 < self._first:
            raise NotFound(
                f"The stream's events up to {self._first - 1} are gone: it was made anew, or --stream-memory was full",
                param=LAST,
                code="events_gone",
            )
        if after >= self.next:
            raise NotFound(f"The stream has no event {after} yet", param=LAST)

    def _from(self, at: int) -> list[bytes]:
        self.check(at - 1)
        behind = self.next - at
        return list(islice(reversed(self._events), behind))[::-1]

    def _wake(self) -> None:
        more, self._more = self._more, asyncio.Event()
        more.set()
        self._changed(self)


class Streams:
    """`most`: bytes of all streams together. `grace`: seconds that a stream waits for a reader, and stays when it has
    ended."""

    def __init__(self, clock: Clock, *, most: int, grace: float) -> None:
        self._clock = clock
        self._most = most
        self._grace = grace
        self._streams: dict[str, Stream] = {}
        self._size = 0
        self._sizes: dict[str, int] = {}
        self._over = Expiry(clock, self._expired)

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def size(self) -> int:
        return self._size

    def open(self, tenant: str, stream_id: str = "", base: int = 0) -> Stream:
        """A new one, that nobody reads yet. `stream_id`: its own name, if it has one."""
        stream = Stream(stream_id or f"stream_{urandom(16).hex()}", tenant, self._changed, base)
        assert stream.id not in self._streams, "a stream is opened once"
        self._streams[stream.id] = stream
        self._changed(stream)
        return stream

    def find(self, tenant: str, stream_id: str) -> Stream | None:
        """None for another tenant's too."""
        stream = self._streams.get(stream_id)
        return stream if stream is not None and stream.tenant == tenant else None

    def drop(self, stream: Stream) -> None:
        """Forget it now; who reads it still has what is left of it."""
        if self._streams.pop(stream.id, None) is not None:
            self._over.drop(stream.id)
            self._size -= self._sizes.pop(stream.id, 0)

    def due(self) -> None:
        """As Expiry's."""
        self._over.due()

    def _changed(self, stream: Stream) -> None:
        if self._streams.get(stream.id) is not stream:
            return
        self._measure(stream)
        while stream.size > self._most // _EACH:
            stream.lose()
            self._measure(stream)
        while self._size > self._most:
            self._halve(self._streams[max(self._sizes, key=self._sizes.__getitem__)])
        if stream.readers:
            self._over.drop(stream.id)
        elif stream.id not in self._over:
            self._over.add(stream.id, self._clock.now() + self._grace)

    def _halve(self, stream: Stream) -> None:
        """Much at once: the largest of many is not looked for again with each event."""
        kept = stream.size // 2
        while stream.size > kept:
            stream.lose()
        self._measure(stream)

    def _measure(self, stream: Stream) -> None:
        self._size += stream.size - self._sizes.get(stream.id, 0)
        self._sizes[stream.id] = stream.size

    def _expired(self, stream_id: str) -> None:
        """Nobody came for it. One that goes on may be left to end by itself: it has its time anew."""
        stream = self._streams[stream_id]
        if stream.ended:
            self.drop(stream)
            return
        self._over.add(stream_id, self._clock.now() + self._grace)
        stream.abandoned()


def counted(events: bytes) -> int:
    """How many events a reader was given."""
    return events.count(_GAP)


async def _within(seconds: float, done: Awaitable[object]) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await done
    except TimeoutError:
        return False
    return True


def _nothing() -> None:
    pass
