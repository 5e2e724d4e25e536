"""The thread team: every task once, any number of members, after a fork, and when destroyed."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest

from tailrace import _native

testing: Any = _native.testing  # type: ignore[attr-defined]


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_task_runs_once(threads: int) -> None:
    team = _native.Team(threads)
    assert team.threads == threads
    for tasks in (0, 1, 7, 1000):
        assert testing.team_sum(team, tasks, 20) == 20 * tasks * (tasks - 1) // 2


def test_two_callers_take_turns() -> None:
    team = _native.Team(2)
    sums: list[int] = []
    callers = [threading.Thread(target=lambda: sums.append(testing.team_sum(team, 100, 50))) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert sums == [50 * 4950] * 3


def test_a_forked_child_gets_its_own_workers() -> None:
    team = _native.Team(2)
    assert testing.team_sum(team, 10, 1) == 45
    child = os.fork()
    if child == 0:
        os._exit(0 if testing.team_sum(team, 10, 3) == 135 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert testing.team_sum(team, 10, 1) == 45


def test_teams_end_with_their_owner() -> None:
    before = tasks()
    teams = [_native.Team(4) for _ in range(3)]
    workers = tasks() - before
    assert len(workers) == 9
    del teams
    end = time.monotonic() + 120
    while workers & tasks() and time.monotonic() < end:  # the kernel lists one that was joined a little longer
        time.sleep(0.001)
    assert not workers & tasks()


def tasks() -> set[str]:
    return set(os.listdir("/proc/self/task"))


@pytest.mark.parametrize("threads", [0, -1, 5000])
def test_a_silly_number_of_threads_is_refused(threads: int) -> None:
    with pytest.raises(ValueError, match="threads must be between"):
        _native.Team(threads)
