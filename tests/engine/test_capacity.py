"""KV blocks from the memory that the kernel says is free."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.engine import capacity
from tailrace.engine.capacity import available_memory, check_asked, kv_capacity
from tailrace.errors import ConfigError

MIB = 1 << 20


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in ({"proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 4194304 kB\n"} | files).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def group(name: str, limit: str, used: int, cache: int) -> dict[str, str]:
    folder = f"sys/fs/cgroup{name}"
    return {
        f"{folder}/memory.max": limit,
        f"{folder}/memory.current": str(used),
        f"{folder}/memory.stat": f"anon 5\ninactive_file {cache}\n",
    }


def test_the_machines_own_memory(tmp_path: Path) -> None:
    assert available_memory(machine(tmp_path, {})) == 4096 * MIB


def test_a_control_group_bounds_it_and_its_file_pages_are_free(tmp_path: Path) -> None:
    files = group("", str(1024 * MIB), 900 * MIB, 500 * MIB)
    assert available_memory(machine(tmp_path, files)) == 624 * MIB


def test_the_tightest_group_on_the_way_up_counts(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/a/b\n"}
    files |= group("/a/b", "max", 0, 0) | group("/a", str(300 * MIB), 100 * MIB, 0)
    assert available_memory(machine(tmp_path, files)) == 200 * MIB


def test_version_1_groups(tmp_path: Path) -> None:
    base = "sys/fs/cgroup/memory"
    files = {
        f"{base}/memory.limit_in_bytes": str(100 * MIB),
        f"{base}/memory.usage_in_bytes": str(70 * MIB),
        f"{base}/memory.stat": f"total_inactive_file {20 * MIB}\n",
    }
    assert available_memory(machine(tmp_path, files)) == 50 * MIB


def test_this_machine_says_something() -> None:
    assert available_memory() > 0


def blocks(asked: int, free: int, monkeypatch: pytest.MonkeyPatch) -> capacity.Capacity:
    monkeypatch.setattr(capacity, "available_memory", lambda: free)
    return kv_capacity(asked, MIB, max_blocks=10, max_sequences=4)


def test_asked_free_and_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(blocks(20 * MIB + 5, 0, monkeypatch)) == "bf16 KV cache 20 MiB: 1,280 tokens in 20 blocks (as asked)"
    found = blocks(0, 100 * MIB, monkeypatch)
    assert (found.blocks, found.reason) == (50, "free_memory")
    found = blocks(0, 10_000 * MIB, monkeypatch)
    assert (found.blocks, found.reason) == (80, "all_contexts")


@pytest.mark.parametrize(("asked", "free"), [(5, 10_000 * MIB), (0, MIB)])
def test_less_than_a_block_is_refused(asked: int, free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError) as caught:
        blocks(asked, free, monkeypatch)
    assert caught.value.param == "kv_memory"


def test_more_than_there_is_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "available_memory", lambda: 100 * MIB)
    for fine in (0, 100 * MIB):
        check_asked(fine)
    with pytest.raises(ConfigError, match=r"104857601 bytes but 104857600 bytes") as caught:
        check_asked(100 * MIB + 1)
    assert caught.value.param == "kv_memory"
