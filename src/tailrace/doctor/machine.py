"""Where the doctor looks: /proc and /sys under a root, and the few questions that only the system can answer."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_info

from tailrace import _native
from tailrace.config import EngineConfig
from tailrace.engine import cpus
from tailrace.engine.nodes import Rank, choose_ranks, memory_nodes
from tailrace.frozen import frozen


def _affinity() -> frozenset[int]:
    return frozenset(os.sched_getaffinity(0))


def _listen(host: str, port: int) -> None:
    """Raises OSError when `serve` could not listen there."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def _disk_free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _pools() -> Sequence[Mapping[str, Any]]:
    return threadpool_info()  # type: ignore[no-any-return]


@frozen
class Machine:
    """The real one by default; tests give a folder in the place of / and answers of their own."""

    root: Path = Path("/")
    features: Callable[[], Mapping[str, bool]] = _native.cpu_features
    variants: Callable[[], Sequence[str]] = _native.variants
    preferred: Callable[[str, str], str] = _native.preferred_format
    affinity: Callable[[], frozenset[int]] = _affinity
    engine_threads: Callable[[], int] = cpus.engine_threads
    listen: Callable[[str, int], None] = _listen
    disk_free: Callable[[Path], int] = _disk_free
    pools: Callable[[], Sequence[Mapping[str, Any]]] = _pools

    def read(self, path: str) -> str:
        """A file under the root; "" when it cannot be read."""
        try:
            return (self.root / path).read_text()
        except OSError:
            return ""

    def field(self, path: str, name: str) -> str:
        """The value of the first `name : value` line of a file; "" without one."""
        lines = (line.partition(":") for line in self.read(path).splitlines())
        return next((value.strip() for key, _, value in lines if key.strip() == name), "")

    def kilobytes(self, path: str, name: str) -> int:
        """Such a value that is written as "123 kB", in bytes; 0 without one."""
        value = self.field(path, name).split()
        return int(value[0]) * 1024 if value and value[0].isdigit() else 0

    def ranks(self, config: EngineConfig) -> tuple[Rank, ...]:
        """How the engine's threads would divide. Raises ConfigError."""
        threads = config.threads or self.engine_threads()
        return choose_ranks(threads, config.ranks, memory_nodes(self.root, self.affinity()))

    def control_groups(self) -> Iterator[str]:
        """Folders of this process's control groups (version 2), innermost first; the last is the root's."""
        return (str(group.relative_to(self.root)) for group in cpus.control_groups(self.root))
