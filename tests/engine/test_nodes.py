"""Memory nodes and ranks of machines made of files."""

from __future__ import annotations

import os
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.config import EngineConfig
from tailrace.engine.basis import engine_team
from tailrace.engine.nodes import Node, Rank, choose_ranks, cpu_list, engine_ranks, memory_nodes, ranks_text
from tailrace.errors import ConfigError
from tests.engine.test_cpus import siblings, tree


def nodes(*lists: str, memory: str = "") -> dict[str, str]:
    """Files of nodes 0, 1, ... with these CPUs; `memory` lists those that the cpuset allows."""
    files = {f"sys/devices/system/node/node{i}/cpulist": f"{text}\n" for i, text in enumerate(lists)}
    status = f"Name:\tpython\nMems_allowed:\tff\nMems_allowed_list:\t{memory}\n"
    return files | ({"proc/self/status": status} if memory else {})


def node(number: int, first: int, count: int) -> Node:
    return Node(number, tuple(range(first, first + count)), count)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3\n", {0, 1, 2, 3}), ("0-1,8-9,15", {0, 1, 8, 9, 15}), ("7", {7}), ("", set()), ("\n", set()),
        ("x,2-,-3,4", {4}),
    ],
)  # fmt: skip
def test_lists_of_cpus(text: str, cpus: set[int]) -> None:
    assert cpu_list(text) == cpus


@pytest.mark.parametrize(
    ("files", "cpus", "found"),
    [
        ({}, range(4), [node(0, 0, 4)]),
        (nodes("0-3"), range(4), [node(0, 0, 4)]),
        (nodes("0-3", "4-7"), range(8), [node(0, 0, 4), node(1, 4, 4)]),
        (nodes("0-3", "4-7"), range(2, 6), [node(0, 2, 2), node(1, 4, 2)]),  # of the affinity
        (nodes("0-3", "4-7"), range(4, 8), [node(1, 4, 4)]),
        (nodes("0-3", "4-7", ""), range(8), [node(0, 0, 4), node(1, 4, 4)]),  # memory without processors
        (nodes("0-3", "4-7", memory="0-1"), range(8), [node(0, 0, 4), node(1, 4, 4)]),
        (nodes("0-3", "4-7", memory="1"), range(8), [Node(1, tuple(range(8)), 8)]),  # processors without memory
        (nodes("0-3", "4-7", "8-9", memory="0,2"), range(10), [node(0, 0, 8), node(2, 8, 2)]),
        (nodes("0-3", memory="5"), range(4), [node(0, 0, 4)]),  # nothing fits together
        (nodes("0-3", "4-7"), range(9), [Node(0, (0, 1, 2, 3, 8), 5), node(1, 4, 4)]),  # one of which nothing is known
    ],
)
def test_nodes_of_a_machine(tmp_path: Path, files: dict[str, str], cpus: range, found: list[Node]) -> None:
    assert memory_nodes(tree(tmp_path, files), cpus) == found


def test_cores_are_counted_once(tmp_path: Path) -> None:
    root = tree(tmp_path, nodes("0-1,4-5", "2-3,6-7") | siblings(["0,4", "1,5", "2,6", "3,7"] * 2))
    assert [(one.cpus, one.cores) for one in memory_nodes(root, range(8))] == [((0, 1, 4, 5), 2), ((2, 3, 6, 7), 2)]
    assert engine_ranks(0, 0, root, range(8)) == (Rank(2, (0, 1, 4, 5), (0,)), Rank(2, (2, 3, 6, 7), (1,)))


def test_a_quota_counts_before_the_nodes(tmp_path: Path) -> None:
    quota = {"proc/self/cgroup": "0::/box\n", "sys/fs/cgroup/box/cpu.max": "300000 100000\n"}
    root = tree(tmp_path, nodes("0-3", "4-7") | quota)
    assert engine_ranks(0, 0, root, range(8)) == (Rank(3),)  # one node has as many
    assert [rank.threads for rank in engine_ranks(0, 2, root, range(8))] == [2, 1]


TWO = [node(0, 0, 4), node(1, 4, 4)]
UNEVEN = [node(0, 0, 2), node(1, 2, 6), node(3, 8, 4)]
FOUR = [node(i, 4 * i, 4) for i in range(4)]


@pytest.mark.parametrize(
    ("threads", "asked", "machine", "text"),
    [
        (4, 0, TWO[:1], "4 threads"),
        (8, 0, TWO, "8 threads in 2 ranks: 4 on node 0, 4 on node 1"),
        (5, 0, TWO, "5 threads in 2 ranks: 3 on node 0, 2 on node 1"),
        (4, 0, TWO, "4 threads"),
        (20, 0, TWO, "20 threads in 2 ranks: 10 on node 0, 10 on node 1"),
        (8, 1, TWO, "8 threads"),
        (12, 0, UNEVEN, "12 threads in 3 ranks: 2 on node 0, 6 on node 1, 4 on node 3"),
        (9, 0, UNEVEN, "9 threads in 2 ranks: 6 on node 1, 3 on node 3"),
        (16, 2, FOUR, "16 threads in 2 ranks: 8 on nodes 0 and 1, 8 on nodes 2 and 3"),
        (16, 3, FOUR, "16 threads in 3 ranks: 4 on node 0, 4 on node 1, 8 on nodes 2 and 3"),
        (8, 4, TWO, "8 threads in 4 ranks: 2 on node 0, 2 on node 0, 2 on node 1, 2 on node 1"),
        (2, 2, TWO[:1], "2 threads in 2 ranks: 1, 1"),
        (3, 3, TWO, "3 threads in 3 ranks: 1 on node 0, 1 on node 0, 1 on node 1"),
    ],
)
def test_ranks_that_are_chosen(threads: int, asked: int, machine: list[Node], text: str) -> None:
    assert ranks_text(choose_ranks(threads, asked, machine)) == text


def test_more_ranks_than_threads_are_refused() -> None:
    with pytest.raises(ConfigError, match="ranks is 3 but there are 2 threads") as refused:
        choose_ranks(2, 3, TWO)
    assert refused.value.param == "ranks"


@given(st.integers(1, 80), st.integers(0, 12), st.lists(st.integers(1, 12), min_size=1, max_size=8))
def test_threads_are_where_their_node_is(threads: int, asked: int, cores: list[int]) -> None:
    ends = list(accumulate(cores))
    machine = [node(i, end - count, count) for i, (end, count) in enumerate(zip(ends, cores, strict=True))]
    if asked > threads:
        return
    ranks = choose_ranks(threads, asked, machine)
    assert sum(rank.threads for rank in ranks) == threads and min(rank.threads for rank in ranks) > 0
    assert len(ranks) == asked or not asked
    for rank in ranks:
        assert rank.cpus == tuple(cpu for number in rank.nodes for cpu in machine[number].cpus)
    if asked == 0 and len(ranks) > 1:  # no node is left out that was needed, and none used that was not
        used = {number for rank in ranks for number in rank.nodes}
        assert sum(cores) <= threads or sum(cores[number] for number in used) >= threads
        assert max(cores) < threads


def test_the_team_is_as_chosen_for_this_machine() -> None:
    assert engine_team(EngineConfig(threads=3, ranks=2)).ranks == [2, 1]
    assert engine_team(EngineConfig(threads=2, ranks=1)).ranks == [2]
    here = engine_ranks(0, 0)
    assert sum(rank.threads for rank in here) <= len(os.sched_getaffinity(0))
    assert engine_team(EngineConfig()).ranks == [rank.threads for rank in here]
