"""A plain NumPy forward pass of Gemma 3, from its published configuration, with the hooks of the llama reference.

Differences from llama: embeddings times sqrt(hidden), norms on queries and keys of each head, a norm after attention
and after the feed-forward, gelu instead of silu, two rope bases, five sliding-window layers to each full one. The
GGUF file has the norms' "1 + w" already added and the rows of q and k in half-split order. Softcaps and a score scale
other than 1 / sqrt(head size) are in the configuration, though no Gemma 3 has the former.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.reference.arithmetic import FloatArithmetic
from tests.reference.gguf_file import GgufFile
from tests.reference.llama import Arithmetic, linear_tensors, rms_norm, split_heads
from tests.reference.qwen2 import rotate_halves

F32 = npt.NDArray[np.float32]

PATTERN = 6  # every sixth layer attends to everything
LOCAL_ROPE_BASE = 10000.0
NORMS = ("attn_norm", "attn_q_norm", "attn_k_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")


class Gemma3Reference:
    def __init__(self, path: str | Path) -> None:
        file = GgufFile(path)
        assert file.architecture == "gemma3"
        self.file = file
        self.layers: int = file.value("%s.block_count")
        self.heads: int = file.value("%s.attention.head_count")
        self.kv_heads: int = file.value("%s.attention.head_count_kv")
        self.head_dim: int = file.value("%s.attention.key_length")
        self.window: int = file.value("%s.attention.sliding_window")
        self.pattern: int = file.value("%s.attention.sliding_window_pattern", PATTERN)
        self.rope_base: float = file.value("%s.rope.freq_base")
        self.scale = np.float32(file.value("%s.attention.scale", self.head_dim**-0.5))
        self.attention_cap: float | None = file.value("%s.attn_logit_softcapping")
        self.final_cap: float | None = file.value("%s.final_logit_softcapping")
        self.eps = np.float32(file.value("%s.attention.layer_norm_rms_epsilon"))
        self.embedding = file.tensor("token_embd.weight")
        self.linears = {"head": self.embedding}
        self.norms = {"final": file.tensor("output_norm.weight")}
        for layer in range(self.layers):
            self.norms |= {f"{name}.{layer}": file.tensor(f"blk.{layer}.{name}.weight") for name in NORMS}
            for name, tensors in linear_tensors(layer).items():
                self.linears[name] = np.concatenate([file.tensor(tensor) for tensor in tensors])

    def logits(self, ids: list[int], arithmetic: Arithmetic | None = None) -> F32:
        """Logits of every position of one sequence, [T, vocab]."""
        arithmetic = arithmetic or FloatArithmetic()
        x = self.embedding[ids] * np.float32(np.sqrt(self.embedding.shape[1]))
        for layer in range(self.layers):
            h = self._attention(layer, self._norm(f"attn_norm.{layer}", x), arithmetic)
            x = x + self._norm(f"post_attention_norm.{layer}", h)
            gate_up = self._linear(f"gate_up.{layer}", self._norm(f"ffn_norm.{layer}", x), arithmetic)
            gate, up = np.split(gate_up, 2, axis=1)
            h = self._linear(f"down.{layer}", gelu(gate) * up, arithmetic)
            x = x + self._norm(f"post_ffw_norm.{layer}", h)
        return softcap(self._linear("head", self._norm("final", x), arithmetic), self.final_cap)

    def _attention(self, layer: int, h: F32, arithmetic: Arithmetic) -> F32:
        sees_all = layer % self.pattern == self.pattern - 1
        theta = self.rope_base if sees_all else LOCAL_ROPE_BASE
        qkv = split_heads(self._linear(f"qkv.{layer}", h, arithmetic), self.head_dim)
        q, k, v = np.split(qkv, [self.heads, self.heads + self.kv_heads])
        q = rotate_halves(self._norm(f"attn_q_norm.{layer}", q), theta)
        k = arithmetic.cached(rotate_halves(self._norm(f"attn_k_norm.{layer}", k), theta))
        mixed = self._attend(q, k, arithmetic.cached(v), None if sees_all else self.window)
        return self._linear(f"o.{layer}", mixed, arithmetic)

    def _attend(self, q: F32, k: F32, v: F32, window: int | None) -> F32:
        """q [heads, T, D], k and v [kv_heads, T, D] -> [T, heads * D]; of its past a token sees the last `window`."""
        heads, tokens, dim = q.shape
        k, v = (np.repeat(part, heads // k.shape[0], axis=0) for part in (k, v))
        scores = softcap(q @ k.transpose(0, 2, 1) * self.scale, self.attention_cap)
        behind = np.arange(tokens)[:, None] - np.arange(tokens)[None]
        seen = behind >= 0 if window is None else (behind >= 0) & (behind < window)
        scores = np.where(seen, scores, np.float32(-np.inf))
        weight = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out = weight @ v / weight.sum(axis=-1, keepdims=True)
        return out.transpose(1, 0, 2).reshape(tokens, heads * dim)

    def _norm(self, name: str, x: F32) -> F32:
        return rms_norm(x, self.norms[name], self.eps)

    def _linear(self, name: str, x: F32, arithmetic: Arithmetic) -> F32:
        return arithmetic.linear(name, x, self.linears[name])


def softcap(x: F32, cap: float | None) -> F32:
    return x if cap is None else np.float32(cap) * np.tanh(x / np.float32(cap))


def gelu(x: F32) -> F32:
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (1 + np.tanh(inner))
