"""Tiny random checkpoints of every architecture, as its GGUF files are, and the NumPy reference of each.

path = write_tiny("gemma3", tmp_path / "tiny.gguf", layers=7)
expected = REFERENCES["gemma3"](path).logits(ids)
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.reference.gemma3 import Gemma3Reference
from tests.reference.llama import LlamaReference
from tests.reference.qwen2 import Qwen2Reference
from tests.reference.qwen3 import Qwen3Reference
from tests.tiny import write_tiny_gguf

F32 = npt.NDArray[np.float32]

REFERENCES = MappingProxyType(
    {"llama": LlamaReference, "qwen2": Qwen2Reference, "qwen3": Qwen3Reference, "gemma3": Gemma3Reference}
)

_SHAPE = dict(layers=2, hidden=192, heads=6, kv_heads=2, ffn=256, seed=5)
_OWN_SHAPE: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": dict(hidden=128, heads=4, head_dim=64),
    "gemma3": dict(layers=4, hidden=128, heads=4, kv_heads=1, head_dim=64),
}
_SETTINGS: dict[str, dict[str, float | int]] = {
    "gemma3": {"gemma3.attention.sliding_window": 70, "gemma3.attention.sliding_window_pattern": 3}
}


def write_tiny(architecture: str, path: Path, *, extra: Any = None, tensors: Any = None, **shape: Any) -> Path:
    """`shape` are arguments of `write_tiny_gguf`; `extra` and `tensors` go on top of what the architecture has."""
    arguments = _SHAPE | _OWN_SHAPE[architecture] | shape
    return write_tiny_gguf(
        path,
        architecture=architecture,
        extra=_SETTINGS.get(architecture, {}) | dict(extra or {}),
        tensors=own_tensors(architecture, arguments) | dict(tensors or {}),
        **arguments,
    )


def own_tensors(architecture: str, arguments: dict[str, Any]) -> dict[str, F32]:
    """What an architecture has besides llama's: biases, and norms of heads and behind the sublayers."""
    rng = np.random.default_rng(17)
    hidden, heads, kv_heads = arguments["hidden"], arguments["heads"], arguments["kv_heads"]
    head_dim = arguments.get("head_dim") or hidden // heads
    vectors: dict[str, tuple[float, int]] = {}
    if architecture == "qwen2":
        rows = {"q": heads, "k": kv_heads, "v": kv_heads}
        vectors |= {f"attn_{part}.bias": (0.0, count * head_dim) for part, count in rows.items()}
    if architecture in ("qwen3", "gemma3"):
        vectors |= {f"attn_{part}_norm.weight": (1.0, head_dim) for part in "qk"}
    if architecture == "gemma3":
        vectors |= {f"post_{part}_norm.weight": (0.5, hidden) for part in ("attention", "ffw")}
    return {
        f"blk.{layer}.{name}": (middle + 0.3 * rng.standard_normal(size)).astype(np.float32)
        for layer in range(arguments["layers"])
        for name, (middle, size) in vectors.items()
    }
