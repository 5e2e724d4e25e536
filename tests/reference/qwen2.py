"""A plain NumPy forward pass of Qwen 2, from its published configuration, with the hooks of the llama reference.

Against llama: a bias on queries, keys and values; rope turns pairs (i, i + dim / 2), and GGUF keeps the rows that way.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.reference.arithmetic import FloatArithmetic
from tests.reference.gguf_file import GgufFile
from tests.reference.llama import Arithmetic, causal_attention, linear_tensors, rms_norm, silu, split_heads

F32 = npt.NDArray[np.float32]


class Qwen2Reference:
    def __init__(self, path: str | Path) -> None:
        file = GgufFile(path)
        assert file.architecture == "qwen2"
        self.file = file
        self.layers: int = file.value("%s.block_count")
        self.heads: int = file.value("%s.attention.head_count")
        self.kv_heads: int = file.value("%s.attention.head_count_kv")
        self.head_dim: int = file.value("%s.embedding_length") // self.heads
        self.theta: float = file.value("%s.rope.freq_base")
        self.eps = np.float32(file.value("%s.attention.layer_norm_rms_epsilon"))
        self.embedding = file.tensor("token_embd.weight")
        self.norms = {"final": file.tensor("output_norm.weight")}
        self.biases: dict[str, F32] = {}
        self.linears = {"head": file.tensor("output.weight") if file.has("output.weight") else self.embedding}
        for layer in range(self.layers):
            self.norms[f"attn.{layer}"] = file.tensor(f"blk.{layer}.attn_norm.weight")
            self.norms[f"ffn.{layer}"] = file.tensor(f"blk.{layer}.ffn_norm.weight")
            biases = [file.tensor(f"blk.{layer}.attn_{part}.bias") for part in "qkv"]
            self.biases[f"qkv.{layer}"] = np.concatenate(biases)
            for name, tensors in linear_tensors(layer).items():
                self.linears[name] = np.concatenate([file.tensor(tensor) for tensor in tensors])

    def logits(self, ids: list[int], arithmetic: Arithmetic | None = None) -> F32:
        """Logits of every position of one sequence, [T, vocab]."""
        arithmetic = arithmetic or FloatArithmetic()
        x = self.embedding[ids]
        for layer in range(self.layers):
            h = rms_norm(x, self.norms[f"attn.{layer}"], self.eps)
            x = x + self._attention(layer, h, arithmetic)
            h = rms_norm(x, self.norms[f"ffn.{layer}"], self.eps)
            gate, up = np.split(self._linear(f"gate_up.{layer}", h, arithmetic), 2, axis=1)
            x = x + self._linear(f"down.{layer}", silu(gate) * up, arithmetic)
        return self._linear("head", rms_norm(x, self.norms["final"], self.eps), arithmetic)

    def _attention(self, layer: int, h: F32, arithmetic: Arithmetic) -> F32:
        qkv = self._linear(f"qkv.{layer}", h, arithmetic) + self.biases[f"qkv.{layer}"]
        q, k, v = np.split(split_heads(qkv, self.head_dim), [self.heads, self.heads + self.kv_heads])
        k = arithmetic.cached(rotate_halves(k, self.theta))
        mixed = causal_attention(rotate_halves(q, self.theta), k, arithmetic.cached(v))
        return self._linear(f"o.{layer}", mixed, arithmetic)

    def _linear(self, name: str, x: F32, arithmetic: Arithmetic) -> F32:
        return arithmetic.linear(name, x, self.linears[name])


def rotate_halves(x: F32, theta: float) -> F32:
    """Turn pairs (i, i + D/2) of [heads, T, D] by position * theta^(-2i / D)."""
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[1])[:, None] * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
