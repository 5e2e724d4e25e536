"""Streams to come back to: every byte once whatever is cut, within a bounded memory, and given up in the end."""

from __future__ import annotations

import asyncio
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.clock import ManualClock
from tailrace.control.streams import Stream, Streams
from tailrace.errors import NotFound
from tests.serving import until

IDLE = 1000.0
EVENT = re.compile(rb"id: (\d+)\n(.*?)\n\n", re.DOTALL)


def opened(most: int = 1 << 20, grace: float = 10.0) -> tuple[Streams, ManualClock]:
    clock = ManualClock()
    return Streams(clock, most=most, grace=grace), clock


class Reader:
    """A client as browsers are one: events count once they are whole, and it knows the last one's number."""

    def __init__(self) -> None:
        self.last = -1
        self.data: list[bytes] = []

    async def read(self, stream: Stream, most: int) -> None:
        """The connection breaks after `most` bytes."""
        pending = b""
        reading = stream.read(self.last, IDLE)
        async for events in reading:
            pending += events[: most - len(pending)]
            if len(pending) == most:
                break
        await reading.aclose()  # type: ignore[attr-defined]
        for number, data in EVENT.findall(pending):
            assert int(number) == self.last + 1
            self.last = int(number)
            self.data.append(data)


@given(
    writes=st.lists(st.lists(st.binary(min_size=1, max_size=30), max_size=4), max_size=20),
    cuts=st.lists(st.integers(1, 200), max_size=20),
)
def test_every_event_comes_once_whatever_is_cut(writes: list[list[bytes]], cuts: list[int]) -> None:
    async def program() -> None:
        streams, _ = opened()
        stream = streams.open("a")
        said = [[b"data: " + text.hex().encode() for text in texts] for texts in writes]

        async def write() -> None:
            for events in said:
                stream.write(b"".join(event + b"\n\n" for event in events) + b": a comment\n\n")
                await asyncio.sleep(0)
            stream.end()

        writing, reader = asyncio.create_task(write()), Reader()
        for cut in cuts:
            await reader.read(stream, cut)
        await reader.read(stream, 1 << 20)
        await writing
        assert reader.data == [event for events in said for event in events]

    asyncio.run(program())


async def test_a_stream_is_its_tenants_alone() -> None:
    streams, _ = opened()
    stream = streams.open("a")
    assert streams.find("a", stream.id) is stream
    assert streams.find("b", stream.id) is None
    assert streams.find("a", "stream_0") is None


async def test_one_that_nobody_reads_is_given_up_and_forgotten() -> None:
    streams, clock = opened(grace=10.0)
    stream, told = streams.open("a"), list[str]()
    stream.abandoned = lambda: told.append("abandoned")
    reading = asyncio.create_task(anext(stream.read(-1, IDLE)))
    await until(lambda: stream.readers == 1)
    clock.advance(100.0)
    streams.due()
    assert told == []
    reading.cancel()
    await until(lambda: stream.readers == 0)
    clock.advance(9.9)
    streams.due()
    assert told == []
    clock.advance(0.2)
    streams.due()
    assert told == ["abandoned"]
    stream.end()
    clock.advance(10.1)
    streams.due()
    assert (len(streams), streams.size) == (0, 0)


async def test_the_oldest_events_give_way_and_are_told_to_be_gone() -> None:
    streams, _ = opened(most=16_000)
    stream = streams.open("a")
    for number in range(100):
        stream.write(b"data: %03d\n\n" % number)
    assert streams.size == stream.size <= 1000
    with pytest.raises(NotFound) as gone:
        stream.check(-1)
    assert gone.value.code == "events_gone"
    stream.end()
    (rest,) = [events async for events in stream.read(97, IDLE)]
    assert rest == b"id: 98\ndata: 098\n\nid: 99\ndata: 099\n\n"
    with pytest.raises(NotFound) as future:
        stream.check(100)
    assert future.value.code == "not_found"


async def test_a_reader_that_is_too_slow_is_told() -> None:
    streams, _ = opened(most=16_000)
    stream = streams.open("a")
    reading = stream.read(-1, IDLE)
    stream.write(b"data: first\n\n")
    assert await anext(reading) == b"id: 0\ndata: first\n\n"
    for _number in range(100):
        stream.write(b"data: more\n\n")
    with pytest.raises(NotFound):
        await anext(reading)
    assert stream.readers == 0


async def test_all_streams_together_are_bounded() -> None:
    streams, _ = opened(most=16_000)
    made = [streams.open("a") for _ in range(40)]
    for stream in made:
        stream.write(b"data: x\n\n" * 5)
    assert sum(stream.size for stream in made) == streams.size <= 16_000
    made[0].end()
    streams.drop(made[0])
    assert sum(stream.size for stream in made[1:]) == streams.size


async def test_pings_are_for_times_of_nothing() -> None:
    streams, _ = opened()
    stream = streams.open("a")
    reading = stream.read(-1, 0.001)
    assert await anext(reading) == b""
    stream.write(b"data: x\n\n")
    assert await anext(reading) == b"id: 0\ndata: x\n\n"
    stream.end()
    assert [events async for events in reading if events] == []
