"""Gemma 3 in plain NumPy, from its published configuration, with the same hooks as the llama reference.

Differences from llama: embeddings times sqrt(hidden), norms on queries and keys of each head, a norm after attention
and after the feed-forward, gelu instead of silu, two rope bases, five sliding-window layers to each full one. The
GGUF file has the norms' "1 + w" already added and the rows of q and k in half-split order.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
from tests.reference.arithmetic import FloatArithmetic
from tests.reference.gguf_file import GgufFile
from tests.reference.llama import causal_attention, linear_tensors, rms_norm, split_heads

F32 = npt.NDArray[np.float32]

PATTERN = 6  # every sixth layer attends to everything
LOCAL_ROPE_BASE = 10000.0
NORMS = ("attn_norm", "attn_q_norm", "attn_k_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")


class GemmaReference:
    def __init__(self, path: str) -> None:
        file = GgufFile(path)
        self.file = file
        self.layers: int = file.value("%s.block_count")
        self.heads: int = file.value("%s.attention.head_count")
        self.kv_heads: int = file.value("%s.attention.head_count_kv")
        self.head_dim: int = file.value("%s.attention.key_length")
        self.window: int = file.value("%s.attention.sliding_window")
        self.rope_base: float = file.value("%s.rope.freq_base")
        self.eps = np.float32(file.value("%s.attention.layer_norm_rms_epsilon"))
        self.embedding = file.tensor("token_embd.weight")
        self.linears = {"head": self.embedding}
        self.norms = {"final": file.tensor("output_norm.weight")}
        for layer in range(self.layers):
            for name in NORMS:
                self.norms[f"{name}.{layer}"] = file.tensor(f"blk.{layer}.{name}.weight")
            for name, tensors in linear_tensors(layer).items():
                self.linears[name] = np.concatenate([file.tensor(tensor) for tensor in tensors])

    def logits(self, ids, arithmetic=None) -> F32:
        assert len(ids) <= self.window, "sliding windows are not modelled: keep texts inside one"
        arithmetic = arithmetic or FloatArithmetic()
        x = self.embedding[ids] * np.float32(np.sqrt(self.embedding.shape[1]))
        for layer in range(self.layers):
            h = self._attention(layer, self._norm(f"attn_norm.{layer}", x), arithmetic)
            x = x + self._norm(f"post_attention_norm.{layer}", h)
            gate_up = self._linear(f"gate_up.{layer}", self._norm(f"ffn_norm.{layer}", x), arithmetic)
            gate, up = np.split(gate_up, 2, axis=1)
            h = self._linear(f"down.{layer}", gelu(gate) * up, arithmetic)
            x = x + self._norm(f"post_ffw_norm.{layer}", h)
        return self._linear("head", self._norm("final", x), arithmetic)

    def _attention(self, layer: int, h: F32, arithmetic) -> F32:
        qkv = split_heads(self._linear(f"qkv.{layer}", h, arithmetic), self.head_dim)
        q, k, v = np.split(qkv, [self.heads, self.heads + self.kv_heads])
        q = self._rope(layer, self._norm(f"attn_q_norm.{layer}", q))
        k = arithmetic.cached(self._rope(layer, self._norm(f"attn_k_norm.{layer}", k)))
        return self._linear(f"o.{layer}", causal_attention(q, k, arithmetic.cached(v)), arithmetic)

    def _norm(self, name: str, x: F32) -> F32:
        return rms_norm(x, self.norms[name], self.eps)

    def _linear(self, name: str, x: F32, arithmetic) -> F32:
        return arithmetic.linear(name, x, self.linears[name])

    def _rope(self, layer: int, x: F32) -> F32:
        base = self.rope_base if layer % PATTERN == PATTERN - 1 else LOCAL_ROPE_BASE
        half = self.head_dim // 2
        angle = np.arange(x.shape[1])[:, None] * base ** (-np.arange(half) / half)
        cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        first, second = x[..., :half], x[..., half:]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def gelu(x: F32) -> F32:
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (1 + np.tanh(inner))


class SentencePieces:
    """The tokenizer a Gemma file describes: start from characters, always merge the pair with the best score."""

    def __init__(self, file: GgufFile) -> None:
        tokens, scores = file.value("tokenizer.ggml.tokens"), file.value("tokenizer.ggml.scores")
        self._ids = {token: index for index, token in enumerate(tokens)}
        self._scores = scores

    def encode(self, text: str) -> list[int]:
        parts = list(text.replace(" ", "\u2581"))
        while True:
            candidates = [
                (self._scores[self._ids[a + b]], -i)
                for i, (a, b) in enumerate(itertools.pairwise(parts))
                if a + b in self._ids
            ]
            if not candidates:
                return [i for part in parts for i in self._ids_of(part)]
            at = -max(candidates)[1]
            parts[at : at + 2] = [parts[at] + parts[at + 1]]

    def _ids_of(self, part: str) -> list[int]:
        if part in self._ids:
            return [self._ids[part]]
        return [self._ids[f"<0x{byte:02X}>"] for byte in part.encode()]
