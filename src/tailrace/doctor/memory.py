"""Memory: how much is free, what a control group allows, and whether weights can live in huge pages."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tailrace.doctor.finding import Finding, Level
from tailrace.doctor.machine import Machine
from tailrace.engine.capacity import available_memory
from tailrace.units import human_bytes

_LITTLE = 512 * 2**20  # bytes; less than the smallest model wants with a useful KV cache
_THP = "sys/kernel/mm/transparent_hugepage/enabled"


def memory_findings(machine: Machine) -> Iterator[Finding]:
    yield _memory(machine)
    yield _group(machine)
    yield _huge_pages(machine)


def memory_limit(machine: Machine) -> int | None:
    """Bytes of the tightest control group; None without a limit."""
    texts = [machine.read(f"{folder}/memory.max") for folder in machine.control_groups()]
    texts.append(machine.read("sys/fs/cgroup/memory/memory.limit_in_bytes"))
    limits = [int(text) for text in map(str.strip, texts) if text.isdigit()]
    total = machine.kilobytes("proc/meminfo", "MemTotal")
    return min((limit for limit in limits if limit < total), default=None)


def _memory(machine: Machine) -> Finding:
    total = machine.kilobytes("proc/meminfo", "MemTotal")
    free = available_memory(machine.root)
    text, facts = f"{human_bytes(free)} available of {human_bytes(total)}", {"available": free, "total": total}
    if free < _LITTLE:
        return Finding("memory", Level.WARN, text, "free some memory, or raise the limit of the container", facts)
    return Finding("memory", Level.OK, text, "", facts)


def _group(machine: Machine) -> Finding:
    limit = memory_limit(machine)
    text = "no limit of a control group" if limit is None else f"a control group allows {human_bytes(limit)}"
    return Finding("memory limit", Level.OK, text, "", {"limit": limit})


def _huge_pages(machine: Machine) -> Finding:
    """Weights ask for them (madvise); without, single-stream decoding loses up to a third to address translation."""
    chosen = re.search(r"\[(\w+)\]", machine.read(_THP))
    setting = chosen[1] if chosen else ""
    facts = {"transparent_hugepage": setting or None}
    if setting in ("always", "madvise"):
        return Finding("huge pages", Level.OK, f"transparent huge pages: {setting}", "", facts)
    advice = f"as root: echo madvise > /{_THP}"
    text = f"transparent huge pages: {setting or 'unknown'}; weights are read through small pages, which is slower"
    return Finding("huge pages", Level.WARN, text, advice, facts)
