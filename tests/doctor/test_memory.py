"""Memory, its limits and huge pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.doctor.finding import Level
from tailrace.doctor.memory import memory_findings, memory_limit
from tests.doctor.support import by_check, machine

THP = "sys/kernel/mm/transparent_hugepage/enabled"


def test_a_healthy_machine(tmp_path: Path) -> None:
    found = by_check(memory_findings(machine(tmp_path)))
    assert {finding.level for finding in found.values()} == {Level.OK}
    assert found["memory"].text == "8.0 GiB available of 16.0 GiB"
    assert found["memory limit"].text == "no limit of a control group"


def test_a_limit_counts_where_it_is_less_than_the_machine(tmp_path: Path) -> None:
    inner = "sys/fs/cgroup/box/inner/memory"
    files = {f"{inner}.max": "1073741824\n", f"{inner}.current": "805306368\n", f"{inner}.stat": "inactive_file 0\n"}
    found = by_check(memory_findings(machine(tmp_path, files)))
    assert found["memory limit"].text == "a control group allows 1.0 GiB"
    assert (found["memory"].level, found["memory"].text) == (Level.WARN, "256.0 MiB available of 16.0 GiB")
    assert memory_limit(machine(tmp_path / "b", {"sys/fs/cgroup/memory.max": str(1 << 60)})) is None
    old = machine(tmp_path / "c", {"sys/fs/cgroup/memory/memory.limit_in_bytes": str(1 << 30)})
    assert memory_limit(old) == 1 << 30


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("[always] madvise never", Level.OK),
        ("always [madvise] never", Level.OK),
        ("always madvise [never]", Level.WARN),
        ("", Level.WARN),
    ],
)
def test_huge_pages(tmp_path: Path, text: str, level: Level) -> None:
    found = by_check(memory_findings(machine(tmp_path, {THP: text})))["huge pages"]
    assert found.level is level
    assert ("echo madvise" in found.advice) == (level is Level.WARN)
