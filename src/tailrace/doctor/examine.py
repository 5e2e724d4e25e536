"""The whole examination, in the order people read it."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.config import Config
from tailrace.doctor.cpu import cpu_findings
from tailrace.doctor.finding import Finding
from tailrace.doctor.machine import Machine
from tailrace.doctor.memory import memory_findings
from tailrace.doctor.model import model_findings
from tailrace.doctor.place import place_findings
from tailrace.doctor.speed import Speed


def examine(machine: Machine, config: Config, speed: Speed | None) -> Iterator[Finding]:
    """Findings one by one, as they are made."""
    yield from place_findings(machine, config)
    yield from cpu_findings(machine, config.engine)
    yield from memory_findings(machine)
    yield from model_findings(machine, config.engine, speed)
