"""An adapter's folder to its weights in the executor: every matrix checked against the model's sizes, then packed.

Owns PEFT's tensor names. Refuses tensors of other modules, halves of pairs, numbers that are not finite.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tailrace import _native
from tailrace.engine.lora.config import PROJECTIONS, AdapterConfig, read_config
from tailrace.engine.models.base import ModelSpec
from tailrace.engine.weights.checkpoint import TensorInfo
from tailrace.engine.weights.dequant import PLAIN, dequantize
from tailrace.engine.weights.safetensors import SafetensorsFile
from tailrace.errors import ModelFileError

FILE = "adapter_model.safetensors"
_PICKLE = "adapter_model.bin"
_NAME = re.compile(r"base_model\.model\.((?:model\.)?layers\.(\d{1,6})\.(?:self_attn|mlp)\.(\w+))\.lora_([AB])\.weight")
_MODULE = re.compile(r"(?:base_model\.model\.)?(.+?)\.lora_\w+(?:\.weight)?")


@dataclass(frozen=True, slots=True)
class _Pair:
    """A x [rank, inputs] and B [outputs, rank] of one projection; `module` is PEFT's name of it."""

    module: str
    name: str  # the executor's
    a: TensorInfo
    b: TensorInfo


def read_adapter(folder: Path, spec: ModelSpec, model: _native.Model) -> _native.Adapter:
    """Raises ModelFileError saying what was found and what would do."""
    config = read_config(folder)
    file = _open(folder)
    adapter = _native.Adapter(model)
    found = set()
    for pair in _pairs(file, spec):
        _check_sizes(pair, spec, config, file.path)
        adapter.set(pair.name, *_matrices(file, pair), config.scale_of(pair.module))
        found.add(pair.module.rpartition(".")[2])
    for target in config.targets:
        if target not in found:
            raise ModelFileError(f"{file.path} has no weights of {target}, which the settings name in target_modules.")
    return adapter


def _open(folder: Path) -> SafetensorsFile:
    path = folder / FILE
    if not path.exists() and (folder / _PICKLE).exists():
        raise ModelFileError(
            f"{folder} has its weights in {_PICKLE}: reading that can run code. Save it as {FILE} (PEFT's default)."
        )
    return SafetensorsFile(path)


def _pairs(file: SafetensorsFile, spec: ModelSpec) -> Iterator[_Pair]:
    halves: dict[tuple[str, str], dict[str, TensorInfo]] = {}
    for name, info in sorted(file.tensors.items()):
        match = _NAME.fullmatch(name)
        if match is None or match[3] not in PROJECTIONS:
            raise ModelFileError(f"{file.path}: {_unknown(name)}; those that run here are {', '.join(PROJECTIONS)}.")
        if int(match[2]) >= spec.layers:
            raise ModelFileError(f"{file.path}: {match[1]} is beyond the model's {spec.layers} layers.")
        key = (match[1], f"{PROJECTIONS[match[3]]}.{int(match[2])}")
        halves.setdefault(key, {})[match[4]] = info
    if not halves:
        raise ModelFileError(f"{file.path} has no tensors.")
    for (module, name), pair in halves.items():
        if len(pair) < 2:
            lacks = "B" if "A" in pair else "A"
            raise ModelFileError(f"{file.path}: {module} has no lora_{lacks}.")
        yield _Pair(module, name, pair["A"], pair["B"])


def _unknown(name: str) -> str:
    """What a tensor is that nothing here reads."""
    if "lora_magnitude_vector" in name:
        return f"{name!r:.100} is of a DoRA adapter, which is not supported"
    match = _MODULE.fullmatch(name)
    if match is None:
        return f"{name!r:.100} is no matrix of an adapter (modules_to_save and biases are not supported)"
    return f"it adapts the module {match[1]!r:.100}"


def _check_sizes(pair: _Pair, spec: ModelSpec, config: AdapterConfig, path: Path) -> None:
    outputs, inputs = _sizes(spec, pair.name.partition(".")[0])
    rank = config.rank_of(pair.module)
    for letter, info, shape in (("A", pair.a, (rank, inputs)), ("B", pair.b, (outputs, rank))):
        if info.shape != shape:
            raise ModelFileError(
                f"{path}: lora_{letter} of {pair.module} has shape {list(info.shape)}; with rank {rank} "
                f"{spec.name} needs {list(shape)}."
            )
        if info.type.name not in PLAIN:
            raise ModelFileError(f"{path}: {info.name} is of type {info.type.name}; F32, F16 and BF16 can be read.")


def _sizes(spec: ModelSpec, kind: str) -> tuple[int, int]:
    """(outputs, inputs)"""
    q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    return {
        "q": (q, spec.hidden), "k": (kv, spec.hidden), "v": (kv, spec.hidden), "o": (spec.hidden, q),
        "gate": (spec.ffn, spec.hidden), "up": (spec.ffn, spec.hidden), "down": (spec.hidden, spec.ffn),
    }[kind]  # fmt: skip


def _matrices(file: SafetensorsFile, pair: _Pair) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """A and B: bf16 where both are stored so, else float32."""
    halved = pair.a.type.name == pair.b.type.name == "BF16"
    found = []
    for info in (pair.a, pair.b):
        raw = file.raw(info.name)
        values = dequantize(raw, info.type.name)
        if not np.isfinite(values).all():
            raise ModelFileError(f"{file.path}: tensor {info.name!r} holds NaN or infinity.")
        found.append(np.ascontiguousarray(raw).view(np.uint16) if halved else values)
    return found[0], found[1]
