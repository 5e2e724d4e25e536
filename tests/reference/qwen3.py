"""A plain NumPy forward pass of Qwen 3 (dense), from its published configuration, with the llama reference's hooks.

Against llama: an RMSNorm on each head of queries and keys before rope; heads have a size of their own; rope turns pairs
(i, i + dim / 2), and GGUF keeps the rows that way.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.reference.arithmetic import FloatArithmetic
from tests.reference.gguf_file import GgufFile
from tests.reference.llama import Arithmetic, causal_attention, linear_tensors, rms_norm, silu, split_heads
from tests.reference.qwen2 import rotate_halves

F32 = npt.NDArray[np.float32]
NORMS = ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm")


class Qwen3Reference:
    def __init__(self, path: str | Path) -> None:
        file = GgufFile(path)
        assert file.architecture == "qwen3"
        self.file = file
        self.layers: int = file.value("%s.block_count")
        self.heads: int = file.value("%s.attention.head_count")
        self.kv_heads: int = file.value("%s.attention.head_count_kv")
        self.head_dim: int = file.value("%s.attention.key_length")
        self.theta: float = file.value("%s.rope.freq_base")
        self.eps = np.float32(file.value("%s.attention.layer_norm_rms_epsilon"))
        self.embedding = file.tensor("token_embd.weight")
        self.norms = {"final": file.tensor("output_norm.weight")}
        self.linears = {"head": file.tensor("output.weight") if file.has("output.weight") else self.embedding}
        for layer in range(self.layers):
            self.norms |= {f"{name}.{layer}": file.tensor(f"blk.{layer}.{name}.weight") for name in NORMS}
            for name, tensors in linear_tensors(layer).items():
                self.linears[name] = np.concatenate([file.tensor(tensor) for tensor in tensors])

    def logits(self, ids: list[int], arithmetic: Arithmetic | None = None) -> F32:
        """Logits of every position of one sequence, [T, vocab]."""
        arithmetic = arithmetic or FloatArithmetic()
        x = self.embedding[ids]
        for layer in range(self.layers):
            x = x + self._attention(layer, self._norm(f"attn_norm.{layer}", x), arithmetic)
            gate_up = self._linear(f"gate_up.{layer}", self._norm(f"ffn_norm.{layer}", x), arithmetic)
            gate, up = np.split(gate_up, 2, axis=1)
            x = x + self._linear(f"down.{layer}", silu(gate) * up, arithmetic)
        return self._linear("head", self._norm("final", x), arithmetic)

    def _attention(self, layer: int, h: F32, arithmetic: Arithmetic) -> F32:
        qkv = split_heads(self._linear(f"qkv.{layer}", h, arithmetic), self.head_dim)
        q, k, v = np.split(qkv, [self.heads, self.heads + self.kv_heads])
        q = rotate_halves(self._norm(f"attn_q_norm.{layer}", q), self.theta)
        k = arithmetic.cached(rotate_halves(self._norm(f"attn_k_norm.{layer}", k), self.theta))
        return self._linear(f"o.{layer}", causal_attention(q, k, arithmetic.cached(v)), arithmetic)

    def _norm(self, name: str, x: F32) -> F32:
        return rms_norm(x, self.norms[name], self.eps)

    def _linear(self, name: str, x: F32, arithmetic: Arithmetic) -> F32:
        return arithmetic.linear(name, x, self.linears[name])
