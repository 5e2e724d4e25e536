"""Small traces, and simulations of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tailrace.config import Config, ControlConfig, EngineConfig
from tailrace.plan.simulator import Outcome, Setup, simulate
from tailrace.plan.steps import Machine
from tailrace.traces import TraceRow

EXACT = Machine((0.01, 0.001, 0.002, 1e-6, 1e-7), noise=0.0)


def row(arrival: float | None, prompt: int = 100, output: int = 10, **fields: Any) -> TraceRow:
    return TraceRow(arrival, prompt, output, **fields)


def config(engine: dict[str, Any] | None = None, **control: Any) -> Config:
    return Config(engine=EngineConfig(**(engine or {})), control=ControlConfig(**control))


def setup(**fields: Any) -> Setup:
    """Steps that take exactly what the formula says."""
    return replace(Setup(machine=EXACT), **fields)


def simulated(rows: list[TraceRow], **fields: Any) -> Outcome:
    return simulate(rows, setup(**fields))


def mixed(count: int, gap: float = 0.2) -> list[TraceRow]:
    """Rows of differing lengths, a long prompt now and then, from three clients."""
    return [
        row(i * gap, 40 + 37 * (i * 7 % 11) + 900 * (i % 9 == 4), 5 + i * 5 % 23, client=f"c{i % 3}")
        for i in range(count)
    ]
