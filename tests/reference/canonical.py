"""The default arithmetic's parameters for a reference model: canonical weights and wide channels by linear.

model = LlamaReference(path)
logits = model.logits(ids, IntegerArithmetic(canonical_linears(model, wide_channels(model, calibration_ids))))
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tailrace.engine.models.registry import describe
from tailrace.engine.weights.calibrate import choose_wide
from tailrace.engine.weights.gguf import GgufFile
from tailrace.engine.weights.pack import pack_weights
from tailrace.engine.weights.quantize import Int8Weights, quantize_affine4, quantize_rows
from tailrace.engine.weights.source import WeightSource
from tests.reference.arithmetic import FloatArithmetic, IntegerArithmetic, Linear8
from tests.reference.llama import LlamaReference, linear_tensors

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


class PeakRecorder(FloatArithmetic):
    """Runs exactly and keeps the largest magnitude of every linear's input channels."""

    def __init__(self) -> None:
        self.peaks: dict[str, F32] = {}

    def linear(self, name: str, x: F32, w: F32) -> F32:
        self.peaks[name] = np.abs(x).max(axis=0)
        return super().linear(name, x, w)


def wide_channels(model: LlamaReference, ids: list[int]) -> dict[str, I32]:
    """What the engine's calibration chooses when it sees these tokens."""
    recorder = PeakRecorder()
    model.logits(ids, recorder)
    return {name: choose_wide(peak) for name, peak in recorder.peaks.items()}


def canonical_linears(model: LlamaReference, wide: Mapping[str, I32]) -> dict[str, Linear8]:
    """int8 weights of every linear, rows in the file's order (gate_up: all gate rows, then all up rows)."""
    result = {}
    for name, w in model.linears.items():
        int8 = _canonical(model, name, w)
        result[name] = Linear8(int8.w8, int8.scale, wide[name])
    return result


def _canonical(model: LlamaReference, name: str, w: F32) -> Int8Weights:
    tensors = [] if name == "head" else linear_tensors(int(name.partition(".")[2]))[name]
    groups = [model.file.groups4(tensor) for tensor in tensors]
    if not groups or None in groups:
        return quantize_rows(w)
    parts = [quantize_affine4(part.q, part.d, part.m).to_int8() for part in groups if part is not None]
    return Int8Weights(np.concatenate([part.w8 for part in parts]), np.concatenate([part.scale for part in parts]))


def engine_integers(path: Path) -> IntegerArithmetic:
    """The engine's integers for the reference, its rows back in the file's order."""
    file = GgufFile(path)
    source = WeightSource(file, describe(file))
    packed = pack_weights(source, "int8", "portable", lambda *_: None)
    linears = {}
    for linear in source.linears():
        affine = source.is_affine4(linear)
        rows = quantize_affine4(*source.affine4(linear)).to_int8() if affine else quantize_rows(source.floats(linear))
        back = np.arange(linear.n) if linear.order is None else np.argsort(linear.order)
        linears[linear.name] = Linear8(rows.w8[back], rows.scale[back], packed.arrays[f"{linear.name}.wide"])
    return IntegerArithmetic(linears)
