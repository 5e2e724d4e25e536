"""The installation and what it uses: versions, the model store, the port."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from tailrace import _native
from tailrace.config import ApiConfig, Config, store_root
from tailrace.doctor.finding import Finding, Level
from tailrace.doctor.machine import Machine
from tailrace.engine.store.store import Store
from tailrace.units import human_bytes

_LITTLE = 2**30  # bytes of disk; a small model with its packed weights


def place_findings(machine: Machine, config: Config) -> Iterator[Finding]:
    yield _build()
    yield _store(machine, store_root(config.engine))
    yield _port(machine, config.api)


def _build() -> Finding:
    facts = {
        "tailrace": version("tailrace"),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "system": f"{platform.system()} {platform.release()}",
        "native": str(_native.__file__),
    }
    text = f"tailrace {facts['tailrace']}, Python {facts['python']}, numpy {facts['numpy']}, {facts['system']}"
    return Finding("installation", Level.OK, text, "", facts)


def _store(machine: Machine, root: Path) -> Finding:
    there = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        advice = f"make {there} writable, or choose another folder with --store (TAILRACE_ENGINE_STORE)"
        return Finding("store", Level.FAIL, f"{root} cannot be written", advice, {"root": str(root)})
    free = machine.disk_free(there)
    pulled = [model.name for model in Store(root).models() if model.pulled]
    text = f"{root}: {human_bytes(free)} free, models: {', '.join(pulled) or 'none yet'}"
    facts = {"root": str(root), "free": free, "models": pulled}
    if free < _LITTLE:
        advice = "free some disk, or choose another folder with --store: a model takes its size twice (file and packed)"
        return Finding("store", Level.WARN, text, advice, facts)
    return Finding("store", Level.OK, text, "", facts)


def _port(machine: Machine, api: ApiConfig) -> Finding:
    facts = {"host": api.host, "port": api.port}
    try:
        machine.listen(api.host, api.port)
    except OSError as error:
        advice = "stop what listens there, or choose another --port (0: any free one) or --host"
        text = f"{api.host}:{api.port}: {error.strerror or error}"
        return Finding("port", Level.FAIL, text, advice, facts)
    return Finding("port", Level.OK, f"{api.host}:{api.port} is free", "", facts)
