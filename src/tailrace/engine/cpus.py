"""How many threads a step should have: CPUs this process may run on, quotas of its control groups, physical cores.

Reads /proc and /sys under a root, which tests replace. What cannot be read limits nothing.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

ROOT = Path("/")


def engine_threads(root: Path = ROOT, cpus: Collection[int] | None = None) -> int:
    """One for each physical core among `cpus` (by default the process's affinity), as far as its CPU quota goes.

    Two threads on one core share its vector units and its caches, which the kernels fill alone.
    """
    cores = physical_cores(os.sched_getaffinity(0) if cpus is None else cpus, root)
    quota = cpu_quota(root)
    return max(1, cores if quota is None else min(cores, int(quota)))


def physical_cores(cpus: Collection[int], root: Path = ROOT) -> int:
    """Cores to which `cpus` belong; one for each CPU of which the system does not say."""
    folder = root / "sys/devices/system/cpu"
    return len({read_text(folder / f"cpu{cpu}/topology/thread_siblings_list").strip() or str(cpu) for cpu in cpus})


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPUs that the tightest control group allows, of version 1 or 2; None without a limit."""
    quotas = [_quota(read_text(group / "cpu.max")) for group in control_groups(root)]
    for group in control_groups(root, "cpu"):
        quotas.append(_quota(f"{read_text(group / 'cpu.cfs_quota_us')} {read_text(group / 'cpu.cfs_period_us')}"))
    return min((quota for quota in quotas if quota is not None), default=None)


def control_groups(root: Path = ROOT, controller: str = "") -> Iterator[Path]:
    """Folders of this process's groups, innermost first; the last is what is mounted.

    Version 2 by default, else version 1 of a controller. Inside a container the path may be the host's, of which only
    the last folder is there: it is the container's own.
    """
    controllers, own = _own_group(read_text(root / "proc/self/cgroup"), controller)
    top = root / "sys/fs/cgroup"
    mount = top / controllers if (top / controllers).is_dir() else top / controller
    names = own.split("/") if own and ".." not in own.split("/") else []
    for depth in range(len(names), -1, -1):
        yield mount.joinpath(*names[:depth])


def _own_group(lines: str, controller: str) -> tuple[str, str]:
    """The controllers mounted with this one and the group's path, from lines like "4:cpu,cpuacct:/a/b"."""
    for line in lines.splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller in names.split(","):
            return names, path.strip("/")
    return controller, ""


def _quota(text: str) -> float | None:
    """ "200000 100000" is 2.0; "max 100000" and "-1 100000" are no limit."""
    words = text.split()
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def read_text(path: Path) -> str:
    """ "" when it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
