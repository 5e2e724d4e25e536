"""Random LoRA adapters as PEFT saves them, for the tiny models and any other sizes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.tiny_hf import safetensors_bytes

F32 = npt.NDArray[np.float32]
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TINY = {"layers": 2, "hidden": 64, "q": 64, "kv": 32, "ffn": 128}  # write_tiny_gguf's own


def write_adapter(
    folder: Path,
    sizes: Mapping[str, int] = TINY,
    *,
    rank: int = 8,
    seed: int = 0,
    size: float = 1.0,
    targets: Sequence[str] = PROJECTIONS,
    dtype: str = "f32",
    tensors: Mapping[str, F32 | None] | None = None,
    **settings: Any,
) -> Path:
    """Write the folder and return it. `size`: of the additions beside usual weights; `tensors` replaces some by their
    whole names, or leaves them out; `settings` go into adapter_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "tiny", "r": rank,
        "lora_alpha": 2 * rank, "target_modules": list(targets), "bias": "none", "lora_dropout": 0.05,
        "use_rslora": False, "use_dora": False, "modules_to_save": None, "init_lora_weights": True,
        "inference_mode": True, "fan_in_fan_out": False, "rank_pattern": {}, "alpha_pattern": {},
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config | settings))
    found: dict[str, Any] = dict(adapter_tensors(sizes, rank, seed, size, targets)) | dict(tensors or {})
    data = safetensors_bytes({name: values for name, values in found.items() if values is not None}, dtype)
    (folder / "adapter_model.safetensors").write_bytes(data)
    return folder


def adapter_tensors(
    sizes: Mapping[str, int], rank: int, seed: int = 0, size: float = 1.0, targets: Sequence[str] = PROJECTIONS
) -> dict[str, F32]:
    rng, found = np.random.default_rng(seed), {}
    for layer in range(sizes["layers"]):
        for target in targets:
            outputs, inputs = shape_of(target, sizes)
            a, b = rng.standard_normal((rank, inputs)), rng.standard_normal((outputs, rank))
            found[tensor_name(layer, target, "A")] = (a / np.sqrt(inputs)).astype(np.float32)
            found[tensor_name(layer, target, "B")] = (b * size / (2 * np.sqrt(rank))).astype(np.float32)
    return found


def tensor_name(layer: int, target: str, letter: str) -> str:
    part = "self_attn" if target[0] in "qkvo" else "mlp"
    return f"base_model.model.model.layers.{layer}.{part}.{target}.lora_{letter}.weight"


def shape_of(target: str, sizes: Mapping[str, int]) -> tuple[int, int]:
    """(outputs, inputs)"""
    hidden, q, kv, ffn = sizes["hidden"], sizes["q"], sizes["kv"], sizes["ffn"]
    return {
        "q_proj": (q, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden), "o_proj": (hidden, q),
        "gate_proj": (ffn, hidden), "up_proj": (ffn, hidden), "down_proj": (hidden, ffn),
    }[target]  # fmt: skip
