"""The processor: which kernels run and why not better ones, threads against cores and quotas, who else computes."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.config import EngineConfig
from tailrace.doctor.finding import Finding, Level
from tailrace.doctor.machine import Machine
from tailrace.engine.cpus import cpu_quota, physical_cores
from tailrace.engine.nodes import memory_nodes, ranks_text
from tailrace.errors import ConfigError

_AVX2 = ("avx2", "fma", "f16c", "bmi2")
_AVX512 = (*_AVX2, "avx512", "avx512_vnni")
# What a kernel variant needs of the CPU, best first; a variant that is not listed explains itself by running or not.
REQUIREMENTS = (
    ("amx", (*_AVX512, "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16", "amx_permitted")),
    ("avx512", _AVX512),
    ("avx2", _AVX2),
    ("portable", ()),
)
_BUSY = 0.25  # load of others per core from which the engine is measurably slower


def cpu_findings(machine: Machine, config: EngineConfig) -> Iterator[Finding]:
    yield _processor(machine)
    yield _kernels(machine, config)
    yield _threads(machine, config)
    yield _nodes(machine, config)
    yield _load(machine)
    yield _pools(machine)


def _processor(machine: Machine) -> Finding:
    name = machine.field("proc/cpuinfo", "model name") or "unknown"
    features = machine.features()
    there = [feature for feature, has in features.items() if has]
    return Finding("processor", Level.OK, f"{name}: {', '.join(there) or 'no features that count here'}", "",
                   {"name": name, "features": dict(features)})  # fmt: skip


def _kernels(machine: Machine, config: EngineConfig) -> Finding:
    runnable = list(machine.variants())
    reasons = {name: _missing(machine, needs) for name, needs in REQUIREMENTS if name not in runnable}
    chosen = runnable[0] if config.isa == "auto" else config.isa
    others = "".join(f"; not {name}: {reason}" for name, reason in reasons.items())
    facts = {"variant": chosen, "runnable": runnable, "not_runnable": reasons}
    if chosen not in runnable:
        advice = f"set isa to auto or one of {', '.join(runnable)}"
        return Finding("kernels", Level.FAIL, f"{chosen} does not run here{others}", advice, facts)
    if chosen == "portable":
        advice = "expect a fraction of the speed; a CPU with AVX2 (any since about 2015) runs several times faster"
        return Finding("kernels", Level.WARN, f"portable{others}", advice, facts)
    if chosen != runnable[0]:
        return Finding("kernels", Level.WARN, f"{chosen}, as set; {runnable[0]} runs too and is faster{others}",
                       "leave isa at auto", facts)  # fmt: skip
    return Finding("kernels", Level.OK, f"{chosen}{others}", "", facts)


def _missing(machine: Machine, needs: tuple[str, ...]) -> str:
    features = machine.features()
    missing = [need for need in needs if not features.get(need, False)]
    if not missing:
        return "not built into this installation (its compiler did not know it)"
    if missing == ["amx_permitted"]:
        return "the system does not grant the tile registers"
    return f"the CPU lacks {', '.join(missing)}"


def _threads(machine: Machine, config: EngineConfig) -> Finding:
    allowed, quota = machine.affinity(), cpu_quota(machine.root)
    cores = physical_cores(allowed, machine.root)
    threads = config.threads or machine.engine_threads()
    room = len(allowed) if quota is None else min(len(allowed), quota)
    text = f"{threads} of {len(allowed)} usable CPUs ({cores} cores)"
    text += "" if quota is None else f", quota {quota:g} CPUs"
    facts = {"threads": threads, "cpus": len(allowed), "cores": cores, "quota": quota}
    if threads > room:
        advice = f"set threads to {max(1, int(room))}: more than may run at once makes every step wait"
        return Finding("threads", Level.WARN, text, advice, facts)
    advice = f"two threads share a core; threads = {cores} may be faster: measure both" if threads > cores else ""
    return Finding("threads", Level.OK, text, advice, facts)


def _nodes(machine: Machine, config: EngineConfig) -> Finding:
    nodes = memory_nodes(machine.root, machine.affinity())
    facts: dict[str, object] = {"nodes": len(nodes)}
    try:
        ranks = machine.ranks(config)
    except ConfigError as error:
        return Finding("memory nodes", Level.FAIL, error.message, "lower ranks, or leave it at 0", facts)
    facts["ranks"] = [rank.threads for rank in ranks]
    text = "one" if len(nodes) == 1 else str(len(nodes))
    if len(nodes) > 1 or len(ranks) > 1:
        text += f": {ranks_text(ranks)}"
    if len(ranks) > 1 or len(nodes) == 1:
        return Finding("memory nodes", Level.OK, text, "", facts)
    if config.ranks == 0:
        advice = "they fit one node: numactl --cpunodebind=N --membind=N keeps them and their memory there"
        return Finding("memory nodes", Level.OK, text, advice, facts)
    return Finding("memory nodes", Level.WARN, f"{text}, which read memory of other nodes", "set ranks to 0", facts)


def _load(machine: Machine) -> Finding:
    words = machine.read("proc/loadavg").split()
    load, cpus = float(words[0]) if words else 0.0, max(1, len(machine.affinity()))
    facts = {"load": load, "cpus": cpus}
    if load / cpus > _BUSY:
        advice = "stop other work, or lower threads by as many CPUs as it takes: a step waits for its slowest thread"
        return Finding("other work", Level.WARN, f"load {load:g} on {cpus} CPUs before this", advice, facts)
    return Finding("other work", Level.OK, f"load {load:g} on {cpus} CPUs", "", facts)


def _pools(machine: Machine) -> Finding:
    """Thread pools of other libraries in this process; the engine holds them to one while it packs weights."""
    pools = {str(pool.get("internal_api")): int(pool.get("num_threads", 1)) for pool in machine.pools()}
    cpus = len(machine.affinity())
    text = ", ".join(f"{name} {threads}" for name, threads in pools.items()) or "none loaded"
    crowded = [name for name, threads in pools.items() if threads > cpus]
    if crowded:
        advice = f"set the number of threads of {', '.join(crowded)} to {cpus} (OPENBLAS_NUM_THREADS, OMP_NUM_THREADS)"
        return Finding("thread pools", Level.WARN, f"{text}, more than {cpus} CPUs", advice, {"pools": pools})
    return Finding("thread pools", Level.OK, text, "", {"pools": pools})
