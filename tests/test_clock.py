"""Clocks: what they count."""

from __future__ import annotations

import threading

from tailrace.clock import ManualClock, WorkClock


def test_work_is_the_processor_time_of_the_thread_and_waiting_is_none() -> None:
    outer = ManualClock(wall=1000.0)
    clock = WorkClock(outer)
    before = clock.now()
    total = 0
    while clock.now() - before < 0.02:  # ends because work is counted
        total += 1
    worked = clock.now()
    waited = threading.Event().wait(0.5)
    assert not waited and total > 0
    assert clock.now() - worked < 0.25  # the half second was another's
    assert clock.wall() == 1000.0
