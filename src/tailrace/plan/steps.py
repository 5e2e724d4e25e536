"""How long a step takes: the cost model's formula with fixed coefficients, times a drawn ratio of measured / predicted.

This is the machine. The engine's own CostModel learns from these times as it would from measured ones.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, inf, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from tailrace.engine.cost import CostModel
from tailrace.engine.step import Work
from tailrace.errors import ConfigError
from tailrace.frozen import frozen

NAMES = ("a", "b", "c", "d", "e")
# Of the default model on two cores with AVX2, as a calibration on a quiet machine found them.
TYPICAL = (6e-3, 1.1e-3, 1.4e-3, 4e-6, 6e-7)
NOISE = 0.075  # gives the p90 of measured / predicted that the cost model starts with, 1.1


@frozen
class Machine:
    """`coefficients`: seconds per unit of (step, P, D, K, A). Ratios of measured to predicted time are those that
    were measured, of steps with prefill and of others, in their order from a drawn place on: machines have slow
    minutes. Without any they are lognormal with `noise`, drawn anew about every `lasting` seconds (0: each step), as
    neighbours come and go. `overhead`: seconds between steps, for planning and hand-off.
    """

    coefficients: tuple[float, ...] = TYPICAL
    noise: float = NOISE
    prefill_ratios: tuple[float, ...] = ()
    decode_ratios: tuple[float, ...] = ()
    overhead: float = 0.0
    said: str = "typical of a small model on two cores"
    lasting: float = 0.0


@dataclass(slots=True)
class StepTimes:
    machine: Machine
    seed: int
    steps: int = 0
    rows: int = 0  # decisions of the scheduler: rows over all steps
    busy: float = 0.0
    _rng: random.Random = field(init=False)
    _place: int = field(init=False)  # in the measured ratios
    _drift: float = 0.0  # logarithm of the last drawn ratio
    _age: float = inf  # seconds of steps since it was drawn

    def __post_init__(self) -> None:
        self._rng = random.Random(f"{self.seed}/steps")
        self._place = self._rng.randrange(1 << 30)

    def seconds(self, work: Work) -> float:
        a, b, c, d, e = self.machine.coefficients
        mean = a + b * work.prefill + c * work.decode + d * work.kv_tokens + e * work.attention
        return mean * self._ratio(work)

    def count(self, rows: int, seconds: float) -> None:
        self.steps += 1
        self.rows += rows
        self.busy += seconds
        self._age += seconds

    def _ratio(self, work: Work) -> float:
        ratios = self.machine.prefill_ratios if work.prefill else self.machine.decode_ratios
        if ratios:
            self._place += 1
            return ratios[self._place % len(ratios)]
        noise, lasting = self.machine.noise, self.machine.lasting
        if not noise or not lasting:
            return self._rng.lognormvariate(0.0, noise) if noise else 1.0
        keep = exp(-self._age / lasting)  # of a process that forgets, as in Ornstein and Uhlenbeck's
        self._drift = keep * self._drift + sqrt(1.0 - keep * keep) * self._rng.gauss(0.0, noise)
        self._age = 0.0
        return exp(self._drift)


def cost_model(machine: Machine) -> CostModel:
    """The engine's own, as after a calibration of this machine."""
    return CostModel(coefficients=np.array(machine.coefficients, dtype=np.float64))


def parse_machine(text: str, noise: float, flag: str = "--steps") -> Machine:
    """ "typical", five coefficients separated by commas, or a JSON file: five numbers, a calibration as the store
    keeps it, or an object with `coefficients`, measured `prefill_ratios` and `decode_ratios`, and `overhead`. Raises
    ConfigError."""
    if text == "typical":
        return Machine(noise=noise)
    if "," in text:
        return Machine(_coefficients(text.split(","), flag, text), noise, said="as given")
    path = Path(text)
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{flag} {text!r}: accepted is typical, measure, five numbers a,b,c,d,e or a JSON file with them ({error})",
            param=flag,
        ) from error
    if isinstance(found, list):
        return Machine(_coefficients(found, flag, text), noise, said=f"from {path.name}")
    if not isinstance(found, dict):
        raise ConfigError(f"{flag} {text}: it holds neither a list of numbers nor an object", param=flag)
    ratios = [tuple(float(ratio) for ratio in found.get(name, ())) for name in ("prefill_ratios", "decode_ratios")]
    coefficients = _coefficients(found.get("coefficients") or found.get("learned", ()), flag, text)
    return Machine(coefficients, noise, ratios[0], ratios[1], float(found.get("overhead", 0.0)), f"from {path.name}")


def _coefficients(values: Sequence[Any], flag: str, text: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        numbers = ()
    if len(numbers) != len(NAMES) or not all(0 <= number < 60 for number in numbers) or not any(numbers):
        raise ConfigError(
            f"{flag} {text}: accepted are five numbers of seconds from 0, for a step, a prefill token, a decode row, a "
            "KV token read and a unit of attention work",
            param=flag,
        )
    return numbers
