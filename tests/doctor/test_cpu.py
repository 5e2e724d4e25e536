"""Kernels, threads and quotas on machines made of files, and on this one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tailrace import _native
from tailrace.config import EngineConfig
from tailrace.doctor.cpu import REQUIREMENTS, cpu_findings
from tailrace.doctor.finding import Level
from tailrace.doctor.machine import Machine
from tests.doctor.support import AVX2, FEATURES, by_check, machine

TWO_NODES = {f"sys/devices/system/node/node{i}/cpulist": f"{2 * i}-{2 * i + 1}\n" for i in range(2)}
LACKS_ALL = f"the CPU lacks {', '.join(FEATURES[4:])}"


def test_a_healthy_machine(tmp_path: Path) -> None:
    found = by_check(cpu_findings(machine(tmp_path), EngineConfig()))
    assert {finding.level for finding in found.values()} == {Level.OK}
    assert found["processor"].text == "Fast CPU 9000: avx2, fma, f16c, bmi2"
    assert found["threads"].text == "4 of 4 usable CPUs (4 cores)"
    assert found["thread pools"].text == "openblas 4"


@pytest.mark.parametrize(
    ("has", "isa", "level", "text"),
    [
        (FEATURES, "auto", Level.OK, "amx"),
        (AVX2, "auto", Level.OK, f"avx2; not amx: {LACKS_ALL}; not avx512: the CPU lacks avx512, avx512_vnni"),
        (FEATURES[:6], "auto", Level.OK, "avx512; not amx: the CPU lacks avx512_bf16, amx_tile"),
        (FEATURES[:-1], "auto", Level.OK, "avx512; not amx: the system does not grant the tile registers"),
        ((), "auto", Level.WARN, "portable; not amx: the CPU lacks avx2, fma"),
        (AVX2, "portable", Level.WARN, "portable; not amx"),
        (FEATURES, "avx2", Level.WARN, "avx2, as set; amx runs too and is faster"),
        (AVX2, "amx", Level.FAIL, "amx does not run here; not amx: the CPU lacks avx512"),
    ],
)
def test_which_kernels_run_and_why_not_others(
    tmp_path: Path, has: tuple[str, ...], isa: str, level: Level, text: str
) -> None:
    found = by_check(cpu_findings(machine(tmp_path, has=has), EngineConfig(isa=isa)))["kernels"]
    assert found.level is level
    assert found.text.startswith(text)
    assert bool(found.advice) == (level is not Level.OK)


def test_a_variant_that_was_not_built_is_said_so(tmp_path: Path) -> None:
    built = machine(tmp_path, has=FEATURES, variants=lambda: ["avx2", "portable"])
    found = by_check(cpu_findings(built, EngineConfig()))["kernels"]
    reason = "not built into this installation (its compiler did not know it)"
    assert found.text == f"avx2; not amx: {reason}; not avx512: {reason}"


def test_the_requirements_are_those_of_the_native_module() -> None:
    """On whatever machine this runs: what the table says can run is what does."""
    features = _native.cpu_features()
    runnable = [name for name, needs in REQUIREMENTS if all(features[need] for need in needs)]
    assert [name for name in _native.variants() if name in dict(REQUIREMENTS)] == runnable
    assert set(FEATURES) <= set(features)


def test_threads_beyond_what_may_run_are_warned_about(tmp_path: Path) -> None:
    limited = machine(tmp_path, {"sys/fs/cgroup/box/inner/cpu.max": "250000 100000"})
    found = by_check(cpu_findings(limited, EngineConfig()))["threads"]
    assert (found.level, found.text) == (Level.WARN, "4 of 4 usable CPUs (4 cores), quota 2.5 CPUs")
    assert found.advice.startswith("set threads to 2:")
    assert by_check(cpu_findings(limited, EngineConfig(threads=2)))["threads"].level is Level.OK
    crowded = by_check(cpu_findings(machine(tmp_path / "b"), EngineConfig(threads=9)))["threads"]
    assert crowded.advice.startswith("set threads to 4:")


def test_shared_cores_are_a_hint(tmp_path: Path) -> None:
    files = {f"sys/devices/system/cpu/cpu{i}/topology/thread_siblings_list": f"{i % 2},{i % 2 + 2}\n" for i in range(4)}
    found = by_check(cpu_findings(machine(tmp_path, files), EngineConfig()))["threads"]
    assert (found.level, found.facts["cores"]) == (Level.OK, 2)
    assert "threads = 2 may be faster" in found.advice


def test_other_work_and_pools_are_warned_about(tmp_path: Path) -> None:
    busy = machine(
        tmp_path,
        {"proc/loadavg": "2.50 1.00 0.50 3/100 1234\n"},
        pools=lambda: [{"internal_api": "openblas", "num_threads": 64}],
    )
    found = by_check(cpu_findings(busy, EngineConfig()))
    levels = {name: found[name].level for name in ("other work", "thread pools")}
    assert set(levels.values()) == {Level.WARN}
    assert found["other work"].text.startswith("load 2.5 on 4 CPUs")
    assert "to 4" in found["thread pools"].advice


@pytest.mark.parametrize(
    ("settings", "level", "text", "advice"),
    [
        ({}, Level.OK, "2: 4 threads in 2 ranks: 2 on node 0, 2 on node 1", ""),
        ({"threads": 3}, Level.OK, "2: 3 threads in 2 ranks: 2 on node 0, 1 on node 1", ""),
        ({"threads": 2}, Level.OK, "2: 2 threads", "they fit one node: numactl"),
        ({"ranks": 1}, Level.WARN, "2: 4 threads, which read memory of other nodes", "set ranks to 0"),
        ({"ranks": 5}, Level.FAIL, "ranks is 5 but there are 4 threads: each rank needs one", "lower ranks"),
    ],
)
def test_how_threads_divide_among_memory_nodes(
    tmp_path: Path, settings: dict[str, int], level: Level, text: str, advice: str
) -> None:
    found = by_check(cpu_findings(machine(tmp_path, TWO_NODES), EngineConfig(**settings)))["memory nodes"]
    assert (found.level, found.text) == (level, text)
    assert found.advice.startswith(advice)
    assert bool(found.advice) == bool(advice)


def test_ranks_on_one_memory_node(tmp_path: Path) -> None:
    one = by_check(cpu_findings(machine(tmp_path), EngineConfig()))["memory nodes"]
    assert (one.level, one.text, one.facts) == (Level.OK, "one", {"nodes": 1, "ranks": [4]})
    three = by_check(cpu_findings(machine(tmp_path), EngineConfig(ranks=3)))["memory nodes"]
    assert (three.level, three.text) == (Level.OK, "one: 4 threads in 3 ranks: 2, 1, 1")


def test_nothing_readable_is_no_error(tmp_path: Path) -> None:
    found = by_check(cpu_findings(replace(machine(tmp_path / "a"), root=tmp_path / "empty"), EngineConfig()))
    assert found["processor"].text.startswith("unknown:")
    assert {finding.level for finding in found.values()} == {Level.OK}


def test_this_machine_can_be_looked_at() -> None:
    found = by_check(cpu_findings(Machine(), EngineConfig()))
    assert found["kernels"].facts["variant"] == _native.variants()[0]
    assert found["threads"].facts["threads"] == Machine().engine_threads()
