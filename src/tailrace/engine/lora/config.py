"""`adapter_config.json` of a PEFT folder: how strongly each matrix is added, and whether it is plain LoRA at all.

Owns which settings have a meaning here. Refuses whatever else would change what the model computes, a setting that is
not known included: an adapter that is half followed gives wrong answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tailrace.engine.weights.checkpoint import read_json
from tailrace.errors import ModelFileError

FILE = "adapter_config.json"
MAX_RANK = 64
PROJECTIONS = MappingProxyType(
    {
        "q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o", "gate_proj": "gate", "up_proj": "up",
        "down_proj": "down",
    }
)  # fmt: skip

_MAX_BYTES = 1 << 20
_LARGEST = 1e6  # of alpha
# Settings with a meaning here, and those that say how the adapter was trained and where it came from.
_READ = frozenset(("peft_type", "r", "lora_alpha", "use_rslora", "target_modules", "rank_pattern", "alpha_pattern"))
_OF_TRAINING = frozenset(
    (
        "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config",
        "exclude_modules", "inference_mode", "layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout",
        "peft_version", "qalora_group_size", "revision", "runtime_config", "task_type",
    )
)  # fmt: skip
_REFUSED = {
    "use_dora": "it is a DoRA adapter, which also scales the model's own weights",
    "lora_bias": "its B matrices have biases",
    "modules_to_save": "it replaces whole modules of the model",
    "fan_in_fan_out": "its matrices are transposed",
    "layer_replication": "it repeats layers of the model",
    "trainable_token_indices": "it changes the embedding",
    "alora_invocation_tokens": "it acts behind certain tokens only",
    "target_parameters": "it adds to parameters that are no linear layers",
    "use_qalora": "its inputs are grouped",
}
_CHANGES_THE_BASE = ("pissa", "olora", "corda", "loftq")  # ways to start that take something from the base's weights


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """`targets`: PEFT's names of the projections that it must have weights of, where it lists them."""

    path: Path
    rank: int
    alpha: float
    rslora: bool
    targets: tuple[str, ...]
    ranks: Mapping[str, Any]
    alphas: Mapping[str, Any]

    def rank_of(self, module: str) -> int:
        """`module`: the whole name, as "model.layers.0.mlp.up_proj"."""
        return _whole(_pattern(self.ranks, module, self.rank), "rank_pattern", self.path)

    def scale_of(self, module: str) -> float:
        """What B (A x) is multiplied with: alpha / rank, or with rslora alpha / sqrt(rank) (Kalajdzievski, 2023,
        arXiv:2312.03732)."""
        alpha = _number(_pattern(self.alphas, module, self.alpha), "alpha_pattern", self.path)
        rank = self.rank_of(module)
        return alpha / math.sqrt(rank) if self.rslora else alpha / rank


def read_config(folder: Path) -> AdapterConfig:
    """Raises ModelFileError naming the setting."""
    path = folder / FILE
    values = read_json(path, _MAX_BYTES)
    kind = values.get("peft_type")
    if kind != "LORA":
        raise _error(path, f"peft_type is {kind!r:.40}; LORA is what runs here")
    _refuse(values, path)
    return AdapterConfig(
        path,
        rank=_whole(values.get("r"), "r", path),
        alpha=_number(values.get("lora_alpha"), "lora_alpha", path),
        rslora=_flag(values.get("use_rslora"), "use_rslora", path),
        targets=_targets(values.get("target_modules"), path),
        ranks=_patterns(values.get("rank_pattern"), "rank_pattern", path),
        alphas=_patterns(values.get("alpha_pattern"), "alpha_pattern", path),
    )


def _refuse(values: Mapping[str, Any], path: Path) -> None:
    for name, reason in _REFUSED.items():
        if values.get(name):
            raise _error(path, f"{name} is {values[name]!r:.60}: {reason}, which is not supported")
    bias = values.get("bias", "none")
    if bias != "none":
        raise _error(path, f"bias is {bias!r:.40}: it changes the model's biases, which is not supported; 'none' is")
    start = values.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGES_THE_BASE):
        raise _error(
            path, f"init_lora_weights is {start!r:.40}: it needs a base with other weights; convert it when saving"
        )
    known = _READ | _OF_TRAINING | _REFUSED.keys() | {"bias", "init_lora_weights"}
    for name, value in values.items():
        if name not in known and not name.startswith("megatron") and value not in (None, False, [], {}, ""):
            raise _error(path, f"{name:.60} is not known here, and may change what the adapter means")


def _targets(value: Any, path: Path) -> tuple[str, ...]:
    """Nothing where it is a pattern: the tensors say what it matched."""
    if not isinstance(value, list):
        return ()
    last = [str(name).rpartition(".")[2] for name in value]
    for name, projection in zip(value, last, strict=True):
        if projection not in PROJECTIONS:
            raise _error(path, f"target_modules has {name!r:.60}; those that run here are {', '.join(PROJECTIONS)}")
    return tuple(sorted(set(last)))


def _pattern(patterns: Mapping[str, Any], module: str, otherwise: Any) -> Any:
    """PEFT's keys are ends of module names."""
    for key, value in patterns.items():
        if module == key or module.endswith("." + key):
            return value
    return otherwise


def _patterns(value: Any, name: str, path: Path) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _error(path, f"{name} is {value!r:.40}; an object is needed")
    for key in value:
        if not key.replace(".", "").replace("_", "").isalnum():
            raise _error(path, f"{name} has the expression {key!r:.60}; plain ends of module names are read")
    return value


def _whole(value: Any, name: str, path: Path) -> int:
    if type(value) is not int or not 0 < value <= MAX_RANK:
        raise _error(path, f"{name} is {value!r:.40}; ranks from 1 to {MAX_RANK} run here")
    return value


def _number(value: Any, name: str, path: Path) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LARGEST:
        raise _error(path, f"{name} is {value!r:.40}; a number above 0 and up to {_LARGEST:g} is needed")
    return float(value)


def _flag(value: Any, name: str, path: Path) -> bool:
    if value not in (None, False, True):
        raise _error(path, f"{name} is {value!r:.40}; true or false is needed")
    return bool(value)


def _error(path: Path, found: str) -> ModelFileError:
    return ModelFileError(f"{path}: {found}.")
