"""A plain NumPy forward pass of the llama architecture: what the engine's numbers are checked against.

    model = LlamaReference(path)
    logits = model.logits(ids)                                  # float32 [T, vocab], every position
    logits = model.logits(ids, IntegerArithmetic(linears))      # the engine's integers

Weights come through the `gguf` package's dequantizer and stay in the file's own row order, so rope here rotates
interleaved pairs (0, 1), (2, 3), ... as GGUF stores the llama architecture.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tests.reference.arithmetic import FloatArithmetic
from tests.reference.gguf_file import GgufFile

F32 = npt.NDArray[np.float32]


class Arithmetic(Protocol):
    def linear(self, name: str, x: F32, w: F32) -> F32: ...
    def cached(self, x: F32) -> F32: ...


class LlamaReference:
    def __init__(self, path: str | Path) -> None:
        file = GgufFile(path)
        assert file.architecture == "llama"
        self.file = file
        self.layers: int = file.value("%s.block_count")
        self.heads: int = file.value("%s.attention.head_count")
        self.kv_heads: int = file.value("%s.attention.head_count_kv", self.heads)
        self.hidden: int = file.value("%s.embedding_length")
        self.head_dim: int = file.value("%s.attention.key_length", self.hidden // self.heads)
        self.rope_dim: int = file.value("%s.rope.dimension_count", self.head_dim)
        self.rope_base: float = file.value("%s.rope.freq_base", 10000.0)
        self.eps = np.float32(file.value("%s.attention.layer_norm_rms_epsilon"))
        self.embedding = file.tensor("token_embd.weight")
        self.norms = {"final": file.tensor("output_norm.weight")}
        self.linears = {"head": file.tensor("output.weight") if file.has("output.weight") else self.embedding}
        for layer in range(self.layers):
            self.norms[f"attn.{layer}"] = file.tensor(f"blk.{layer}.attn_norm.weight")
            self.norms[f"ffn.{layer}"] = file.tensor(f"blk.{layer}.ffn_norm.weight")
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
            gate_up = self._linear(f"gate_up.{layer}", h, arithmetic)
            gate, up = np.split(gate_up, 2, axis=1)
            x = x + self._linear(f"down.{layer}", silu(gate) * up, arithmetic)
        return self._linear("head", rms_norm(x, self.norms["final"], self.eps), arithmetic)

    def _attention(self, layer: int, h: F32, arithmetic: Arithmetic) -> F32:
        qkv = split_heads(self._linear(f"qkv.{layer}", h, arithmetic), self.head_dim)
        q, k, v = np.split(qkv, [self.heads, self.heads + self.kv_heads])
        k = arithmetic.cached(self._rope(k))
        mixed = causal_attention(self._rope(q), k, arithmetic.cached(v))
        return self._linear(f"o.{layer}", mixed, arithmetic)

    def _linear(self, name: str, x: F32, arithmetic: Arithmetic) -> F32:
        return arithmetic.linear(name, x, self.linears[name])

    def _rope(self, x: F32) -> F32:
        """Rotate pairs (2i, 2i + 1) of [heads, T, head_dim] by position * base^(-2i / rope_dim)."""
        frequency = self.rope_base ** (-np.arange(0, self.rope_dim, 2) / self.rope_dim)
        if self.file.has("rope_freqs.weight"):
            frequency = frequency / self.file.tensor("rope_freqs.weight")
        angle = np.arange(x.shape[1])[:, None] * frequency
        cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        even, odd = x[..., 0 : self.rope_dim : 2], x[..., 1 : self.rope_dim : 2]
        out = x.copy()
        out[..., 0 : self.rope_dim : 2] = even * cos - odd * sin
        out[..., 1 : self.rope_dim : 2] = even * sin + odd * cos
        return out


def linear_tensors(layer: int) -> dict[str, list[str]]:
    """The file's tensors that make up each linear of a layer, in row order."""
    prefix = f"blk.{layer}."
    parts = {
        "qkv": ["attn_q", "attn_k", "attn_v"],
        "o": ["attn_output"],
        "gate_up": ["ffn_gate", "ffn_up"],
        "down": ["ffn_down"],
    }
    return {f"{name}.{layer}": [f"{prefix}{part}.weight" for part in names] for name, names in parts.items()}


def rms_norm(x: F32, weight: F32, eps: np.float32) -> F32:
    return (x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight).astype(np.float32)


def split_heads(x: F32, head_dim: int) -> F32:
    """[T, heads * head_dim] -> [heads, T, head_dim]."""
    return x.reshape(x.shape[0], -1, head_dim).transpose(1, 0, 2)


def causal_attention(q: F32, k: F32, v: F32) -> F32:
    """q [heads, T, D], k and v [kv_heads, T, D] -> [T, heads * D]; scores are divided by sqrt(D)."""
    heads, tokens, dim = q.shape
    k, v = (np.repeat(part, heads // k.shape[0], axis=0) for part in (k, v))
    scores = q @ k.transpose(0, 2, 1) / np.float32(np.sqrt(dim))
    scores = np.where(np.tri(tokens, dtype=bool), scores, np.float32(-np.inf))
    weight = np.exp(scores - scores.max(axis=-1, keepdims=True))
    out = weight @ v / weight.sum(axis=-1, keepdims=True)
    return out.transpose(1, 0, 2).reshape(tokens, heads * dim)


def silu(x: F32) -> F32:
    return (x / (1 + np.exp(-x.astype(np.float64)))).astype(np.float32)
