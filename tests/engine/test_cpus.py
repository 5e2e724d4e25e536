"""Threads, cores and quotas of machines made of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tailrace.engine.cpus import control_groups, cpu_quota, engine_threads, physical_cores
from tailrace.engine.weights.load import load_model
from tests.tiny import write_tiny_gguf

V2 = {"proc/self/cgroup": "0::/box/inner\n"}
V1 = {"proc/self/cgroup": "5:memory:/other\n4:cpu,cpuacct:/box/inner\n1:name=systemd:/init\n0::/\n"}
CPU = "sys/fs/cgroup/cpu,cpuacct"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def v1(folder: str, quota: int, period: int = 100_000) -> dict[str, str]:
    return {f"{folder}/cpu.cfs_quota_us": f"{quota}\n", f"{folder}/cpu.cfs_period_us": f"{period}\n"}


def siblings(pairs: list[str]) -> dict[str, str]:
    return {f"sys/devices/system/cpu/cpu{i}/topology/thread_siblings_list": f"{text}\n" for i, text in enumerate(pairs)}


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        (V2, None),
        (V2 | {"sys/fs/cgroup/box/inner/cpu.max": "max 100000\n"}, None),
        (V2 | {"sys/fs/cgroup/box/inner/cpu.max": "150000 100000\n"}, 1.5),
        (V2 | {"sys/fs/cgroup/box/inner/cpu.max": "max 100000", "sys/fs/cgroup/box/cpu.max": "300000 100000"}, 3.0),
        (V2 | {"sys/fs/cgroup/box/inner/cpu.max": "400000 100000", "sys/fs/cgroup/cpu.max": "50000 20000"}, 2.5),
        (V2 | {"sys/fs/cgroup/elsewhere/cpu.max": "100000 100000"}, None),
        ({"proc/self/cgroup": "0::/../..\n", "sys/fs/cgroup/cpu.max": "200000 100000"}, 2.0),
        (V2 | {"sys/fs/cgroup/cpu.max": "garbage"}, None),
        (V2 | {"sys/fs/cgroup/cpu.max": "100000 0"}, None),
        (V1, None),
        (V1 | v1(f"{CPU}/box/inner", -1), None),
        (V1 | v1(f"{CPU}/box/inner", 350_000), 3.5),
        (V1 | v1(f"{CPU}/box/inner", 400_000) | v1(f"{CPU}/box", 50_000, 25_000), 2.0),
        (V1 | v1(CPU, 100_000), 1.0),  # a container that is told the host's path
        (V1 | v1("sys/fs/cgroup/cpu/box", 100_000), 1.0),  # where it is mounted under another name
        ({"proc/self/cgroup": "3:cpu:/a\n"} | v1("sys/fs/cgroup/cpu/a", 100_000), 1.0),
        (v1("sys/fs/cgroup/cpu", 50_000), 0.5),
    ],
)
def test_the_tightest_quota_counts(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    assert cpu_quota(tree(tmp_path, files)) == quota


def test_groups_are_listed_from_the_innermost(tmp_path: Path) -> None:
    root, top = tree(tmp_path, V2), tmp_path / "sys/fs/cgroup"
    assert list(control_groups(root)) == [top / "box/inner", top / "box", top]
    root = tree(tmp_path, V1 | v1(CPU, -1))
    assert list(control_groups(root, "cpu")) == [tmp_path / CPU / "box/inner", tmp_path / CPU / "box", tmp_path / CPU]


HYPERTHREADS = ["0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"]


@pytest.mark.parametrize(
    ("cpus", "files", "threads"),
    [
        (range(8), {}, 8),
        (range(8), siblings(HYPERTHREADS), 4),
        (range(4), siblings(HYPERTHREADS), 4),
        ({0, 4, 1}, siblings(HYPERTHREADS), 2),
        ({3, 9}, siblings(HYPERTHREADS), 2),  # one of which nothing is known
        (range(8), siblings(HYPERTHREADS) | V2 | {"sys/fs/cgroup/box/cpu.max": "250000 100000"}, 2),
        (range(8), siblings(HYPERTHREADS) | V2 | {"sys/fs/cgroup/box/cpu.max": "900000 100000"}, 4),
        (range(8), V2 | {"sys/fs/cgroup/box/cpu.max": "50000 100000"}, 1),
        (range(8), V1 | v1(f"{CPU}/box/inner", 300_000), 3),
    ],
)
def test_threads_are_cores_within_the_quota(
    tmp_path: Path, cpus: set[int], files: dict[str, str], threads: int
) -> None:
    assert engine_threads(tree(tmp_path, files), cpus) == threads


def test_this_machine(tmp_path: Path) -> None:
    """Affinity counts: held to one CPU, the engine has one thread."""
    allowed = os.sched_getaffinity(0)
    assert 1 <= engine_threads() <= physical_cores(allowed) <= len(allowed)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert load_model(write_tiny_gguf(tmp_path / "tiny.gguf"), isa="portable").team.threads == 1
    finally:
        os.sched_setaffinity(0, allowed)
