"""Closed and open loops, in simulated time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tailrace.bench.drive import Driver, History, Limits
from tailrace.bench.record import Record
from tailrace.bench.workload import Talk, Turn
from tests.bench.pace import FakeServer, ManualPace


def endless(turns: int = 1) -> Iterator[Talk]:
    for number in count():
        yield Talk(number, tuple(Turn(f"q{number}.{i}", 4) for i in range(turns)))


class Rig:
    def __init__(self, seconds: float, limits: Limits, chat: bool = True, **server: object) -> None:
        self.pace = ManualPace()
        self.server = FakeServer(self.pace, seconds, **server)  # type: ignore[arg-type]
        self.records: list[Record] = []
        self.driver = Driver(self.server, self.pace, limits, lambda record, _: self.records.append(record), chat=chat)


async def test_a_closed_loop_keeps_so_many_open_and_sends_so_many() -> None:
    rig = Rig(1.0, Limits(requests=10))
    await rig.pace.play(rig.driver.closed(endless(), 4))
    assert (len(rig.records), rig.server.most_open) == (10, 4)
    assert rig.pace.now() == 3.0
    assert sorted(record.index for record in rig.records) == list(range(10))


async def test_a_closed_loop_sends_nothing_after_its_duration_and_waits_for_answers() -> None:
    rig = Rig(1.0, Limits(until=2.5))
    await rig.pace.play(rig.driver.closed(endless(), 2))
    assert (len(rig.records), rig.pace.now()) == (6, 3.0)


async def test_an_open_loop_sends_on_time_whatever_the_server_does() -> None:
    rig = Rig(1.0, Limits(requests=5), slots=1)
    await rig.pace.play(rig.driver.open(endless(), (0.25 * i for i in count()), 0.0))
    assert [ask.scheduled for ask in rig.server.asks] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert [record.ttft for record in rig.records] == [1.0, 1.75, 2.5, 3.25, 4.0]  # the queue is in the latency


async def test_an_open_loop_ends_with_its_duration() -> None:
    rig = Rig(0.1, Limits(until=1.0))
    await rig.pace.play(rig.driver.open(endless(), (0.25 * i for i in count()), 0.0))
    assert len(rig.records) == 4


async def test_a_late_sender_is_seen_and_counted_in_the_latency() -> None:
    rig = Rig(1.0, Limits(requests=2))

    async def work() -> None:
        await rig.pace.until(3.0)  # busy with something else while two requests were due
        await rig.driver.open(endless(), iter((0.0, 0.5)), 0.0)

    await rig.pace.play(work())
    assert [record.lag for record in rig.records] == [3.0, 2.5]
    assert [record.ttft for record in rig.records] == [4.0, 3.5]


async def test_conversations_grow_with_the_real_answers() -> None:
    rig = Rig(1.0, Limits(requests=3, think=0.5))
    await rig.pace.play(rig.driver.closed(endless(turns=3), 1))
    assert [message["content"] for message in rig.server.asks[2].prompt] == [  # type: ignore[index]
        "q0.0", "answer 0.0", "q0.1", "answer 0.1", "q0.2",
    ]  # fmt: skip
    assert [ask.scheduled for ask in rig.server.asks] == [None, 1.5, 3.0]
    assert [(record.turn, record.talk) for record in rig.records] == [(0, 0), (1, 0), (2, 0)]


async def test_the_last_conversation_is_cut_at_the_number_of_requests() -> None:
    rig = Rig(1.0, Limits(requests=7))
    await rig.pace.play(rig.driver.closed(endless(turns=3), 2))
    assert len(rig.records) == 7


async def test_an_error_ends_its_conversation_only() -> None:
    rig = Rig(1.0, Limits(requests=6), failing=frozenset({0}))
    await rig.pace.play(rig.driver.closed(endless(turns=3), 1))
    assert [(record.talk, record.turn) for record in rig.records] == [(0, 0), (1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize("open_loop", [False, True])
async def test_a_fault_of_ours_ends_the_run_and_leaves_no_task(open_loop: bool) -> None:
    rig = Rig(1.0, Limits(requests=9))

    def broken(record: Record, text: str) -> None:
        raise RuntimeError("ours")

    rig.driver._done = broken
    times = iter([0.1 * i for i in range(9)])
    work = rig.driver.open(endless(), times, 0.0) if open_loop else rig.driver.closed(endless(), 3)
    with pytest.raises(RuntimeError, match="ours"):
        await rig.pace.play(work)


def test_history_as_one_text() -> None:
    history = History(chat=False)
    assert history.ask("a?") == "a?"
    history.answered(" yes")
    assert history.ask("b?") == "a? yes\nb?"


def test_ids_have_no_history() -> None:
    history = History(chat=False)
    assert history.ask([5, 6]) == [5, 6]
