"""A machine made of files in a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tailrace.doctor.cpu import REQUIREMENTS
from tailrace.doctor.finding import Finding
from tailrace.doctor.machine import Machine

FEATURES = ("avx2", "fma", "f16c", "bmi2", "avx512", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16",
            "amx_permitted")  # fmt: skip
AVX2 = FEATURES[:4]

HEALTHY = {
    "proc/cpuinfo": "processor : 0\nmodel name\t: Fast CPU 9000\n",
    "proc/meminfo": "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n",
    "proc/loadavg": "0.20 0.10 0.05 1/100 1234\n",
    "proc/self/cgroup": "0::/box/inner\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/devices/system/node/node0/cpulist": "0-3\n",
    "sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0\n",
    "sys/devices/system/cpu/cpu1/topology/thread_siblings_list": "1\n",
    "sys/devices/system/cpu/cpu2/topology/thread_siblings_list": "2\n",
    "sys/devices/system/cpu/cpu3/topology/thread_siblings_list": "3\n",
}


def machine(root: Path, files: dict[str, str] | None = None, *, has: Iterable[str] = AVX2, **answers: Any) -> Machine:
    """Four cores with AVX2 and 8 GiB free, unless told otherwise."""
    for name, text in {**HEALTHY, **(files or {})}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    there = set(has)
    variants = [name for name, needs in REQUIREMENTS if there.issuperset(needs)]
    plain = Machine(
        root=root,
        features=lambda: {feature: feature in there for feature in FEATURES},
        variants=lambda: variants,
        affinity=lambda: frozenset(range(4)),
        engine_threads=lambda: 4,
        listen=lambda host, port: None,
        disk_free=lambda folder: 100 << 30,
        preferred=lambda variant, source: "int8" if variant == "amx" else "nib4",
        pools=lambda: [{"internal_api": "openblas", "num_threads": 4}],
    )
    return replace(plain, **answers)


def by_check(findings: Iterable[Finding]) -> dict[str, Finding]:
    found = list(findings)
    assert len({finding.check for finding in found}) == len(found)
    return {finding.check: finding for finding in found}


def refusing(error: OSError) -> Callable[[str, int], None]:
    def listen(host: str, port: int) -> None:
        raise error

    return listen
