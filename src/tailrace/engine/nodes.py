"""Memory nodes (NUMA) that this process may use, and how the engine's threads divide among them into ranks.

Reads /proc and /sys under a root, which tests replace. What cannot be read limits nothing: then there is one node.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from tailrace.engine.cpus import ROOT, engine_threads, physical_cores, read_text
from tailrace.errors import ConfigError
from tailrace.frozen import frozen


@frozen
class Node:
    """`number` as the system counts; `cpus` those we may run on, of so many physical `cores`."""

    number: int
    cpus: tuple[int, ...]
    cores: int


@frozen
class Rank:
    """Threads with a share of the model, and the CPUs and nodes where they stay; none: the system places them."""

    threads: int
    cpus: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()


def engine_ranks(threads: int, ranks: int, root: Path = ROOT, cpus: Collection[int] | None = None) -> tuple[Rank, ...]:
    """What the settings `threads` and `ranks` mean here; 0 is the machine's choice. Raises ConfigError."""
    return choose_ranks(threads or engine_threads(root, cpus), ranks, memory_nodes(root, cpus))


def memory_nodes(root: Path = ROOT, cpus: Collection[int] | None = None) -> list[Node]:
    """Nodes with CPUs among `cpus` (by default the process's affinity) and memory that its cpuset allows, by number.

    CPUs without such memory of their own count to the first node.
    """
    allowed = set(os.sched_getaffinity(0) if cpus is None else cpus)
    memory = _allowed_memory(root)
    found: dict[int, set[int]] = {}
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        number, own = int(folder.name.removeprefix("node")), cpu_list(read_text(folder / "cpulist")) & allowed
        if own and (memory is None or number in memory):
            found[number] = own
    numbers = sorted(found) or [0]
    found[numbers[0]] = allowed - set().union(*(found[number] for number in numbers[1:]))
    return [Node(number, tuple(sorted(found[number])), physical_cores(found[number], root)) for number in numbers]


def choose_ranks(threads: int, asked: int, nodes: Sequence[Node]) -> tuple[Rank, ...]:
    """`asked` ranks, or for 0 one on each node that is needed for so many threads. One rank is left to the system.

    More ranks than nodes share them, fewer take several each. Raises ConfigError for more ranks than threads.
    """
    if asked > threads:
        raise ConfigError(f"ranks is {asked} but there are {threads} threads: each rank needs one", param="ranks")
    used = nodes if asked else _needed(threads, nodes)
    count = asked or len(used)
    if count == 1:
        return (Rank(threads),)
    homes = [_home(used, rank, count) for rank in range(count)]
    cores = [sum(node.cores for node in home) / sum(one == home for one in homes) for home in homes]
    pinned = len(used) > 1
    return tuple(
        Rank(
            size,
            tuple(cpu for node in home for cpu in node.cpus) if pinned else (),
            tuple(node.number for node in home) if pinned else (),
        )
        for size, home in zip(_divided(threads, cores), homes, strict=True)
    )


def ranks_text(ranks: Sequence[Rank]) -> str:
    """ "16 threads in 2 ranks: 8 on node 0, 8 on node 1"."""
    threads = f"{sum(rank.threads for rank in ranks)} threads"
    if len(ranks) == 1:
        return threads
    return f"{threads} in {len(ranks)} ranks: {', '.join(map(_rank_text, ranks))}"


def _rank_text(rank: Rank) -> str:
    nodes = " and ".join(map(str, rank.nodes))
    return f"{rank.threads} on node{'s' * (len(rank.nodes) > 1)} {nodes}" if nodes else str(rank.threads)


def _needed(threads: int, nodes: Sequence[Node]) -> list[Node]:
    """The largest, until they have a core for each thread: what crosses between nodes costs more than it gains else."""
    chosen: list[Node] = []
    for node in sorted(nodes, key=lambda node: -node.cores):
        if sum(one.cores for one in chosen) < threads:
            chosen.append(node)
    return sorted(chosen, key=lambda node: node.number)


def _home(nodes: Sequence[Node], rank: int, count: int) -> tuple[Node, ...]:
    if count > len(nodes):
        return (nodes[rank * len(nodes) // count],)
    return tuple(nodes[rank * len(nodes) // count : (rank + 1) * len(nodes) // count])


def _divided(threads: int, cores: Sequence[float]) -> list[int]:
    """At least one each, the others one by one to whom they leave the most cores a thread."""
    sizes = [1] * len(cores)
    for _ in range(threads - len(cores)):
        sizes[max(range(len(cores)), key=lambda rank: cores[rank] / (sizes[rank] + 1))] += 1
    return sizes


def _allowed_memory(root: Path) -> set[int] | None:
    """Nodes whose memory the cpuset allows; None: unknown."""
    listed = re.search(r"^Mems_allowed_list:\s*(\S+)", read_text(root / "proc/self/status"), re.MULTILINE)
    return cpu_list(listed[1]) if listed else None


def cpu_list(text: str) -> set[int]:
    """ "0-2,5" is {0, 1, 2, 5}; what is not of this form is left out."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        if match := re.fullmatch(r"(\d+)(?:-(\d+))?", part):
            numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return numbers
