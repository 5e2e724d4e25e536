"""A tiny random model in both forms: the native one, and a float64 NumPy one with the same quantized weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tailrace import _native

F32 = npt.NDArray[np.float32]
BLOCK = _native.BLOCK_TOKENS
Kv = Literal["bf16", "int8"]


@dataclass(frozen=True)
class Dims:
    layers: int = 2
    hidden: int = 64
    heads: int = 3
    kv_heads: int = 1
    head_dim: int = 32
    ffn: int = 128
    vocab: int = 77
    max_positions: int = 1200
    norm_eps: float = 1e-5
    activation: str = "silu"
    embedding_scale: float = 1.0
    attention_scale: float = 0.0
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    windows: tuple[int, ...] = ()  # by layer; none: every layer sees everything
    ropes: tuple[int, ...] = ()  # by layer; none: table 0
    bias: bool = False  # on q, k and v
    head_norms: bool = False  # on each head of q and k
    out_norms: bool = False  # behind both sublayers

    def spec(self) -> Any:
        parts = {"bias", "head_norms", "out_norms"}
        values = {key: list(value) if isinstance(value, tuple) else value for key, value in self.__dict__.items()}
        return {key: value for key, value in values.items() if key not in parts and value != []}

    def shapes(self) -> dict[str, tuple[int, int]]:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, int]] = {}
        for i in range(self.layers):
            shapes[f"qkv.{i}"] = (q + 2 * kv, self.hidden)
            shapes[f"o.{i}"] = (self.hidden, q)
            shapes[f"gate_up.{i}"] = (2 * self.ffn, self.hidden)
            shapes[f"down.{i}"] = (self.hidden, self.ffn)
        shapes["head"] = (self.vocab, self.hidden)
        return shapes


def to_bf16(x: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(x: npt.NDArray[np.uint16]) -> F32:
    return (x.astype(np.uint32) << 16).view(np.float32)


@dataclass
class Weights:
    """Canonical weights: int8 [N, K] with a scale a row (or bf16), and the float matrices they stand for."""

    dims: Dims
    formats: dict[str, str]
    w8: dict[str, npt.NDArray[np.int8]] = field(default_factory=dict)
    nibbles: dict[str, tuple[Any, Any, Any]] = field(default_factory=dict)
    bits: dict[str, npt.NDArray[np.uint16]] = field(default_factory=dict)
    scale: dict[str, F32] = field(default_factory=dict)
    wide: dict[str, npt.NDArray[np.int32]] = field(default_factory=dict)
    dense: dict[str, F32] = field(default_factory=dict)
    norms: dict[str, F32] = field(default_factory=dict)
    biases: dict[str, F32] = field(default_factory=dict)
    embedding: F32 = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    cos: F32 = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    sin: F32 = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    local: tuple[F32, F32] | None = None  # cos and sin of rope table 1

    def rope(self, layer: int) -> tuple[F32, F32]:
        local = self.dims.ropes and self.dims.ropes[layer] == 1
        return self.local if local and self.local else (self.cos, self.sin)


def random_nibbles(rng: np.random.Generator, n: int, k: int) -> tuple[Any, Any, Any, npt.NDArray[np.int8]]:
    q = rng.integers(0, 16, (n, k), dtype=np.uint8)
    a = rng.integers(-1000, 1000, (n, k // 32), dtype=np.int16)
    b = (-a.astype(np.int32) * 7 + rng.integers(-100, 100, a.shape)).astype(np.int16)
    w = (np.repeat(a, 32, 1).astype(np.int32) * q + np.repeat(b, 32, 1)) >> 6
    return q, a, b, np.clip(w, -128, 127).astype(np.int8)


def random_weights(dims: Dims, fmt: str = "int8", seed: int = 0) -> Weights:
    rng = np.random.default_rng(seed)
    weights = Weights(dims, {})
    for name, (n, k) in dims.shapes().items():
        weights.formats[name] = fmt
        weights.wide[name] = np.sort(rng.choice(k, 64 if k > 64 else 0, replace=False)).astype(np.int32)
        if fmt == "bf16":
            weights.bits[name] = to_bf16(rng.normal(size=(n, k)) / np.sqrt(k))
            weights.dense[name] = from_bf16(weights.bits[name])
            continue
        if fmt == "nib4":
            *parts, w = random_nibbles(rng, n, k)
            weights.nibbles[name] = (parts[0], parts[1], parts[2])
        else:
            w = rng.integers(-127, 128, (n, k), dtype=np.int8)
        weights.w8[name] = w
        weights.scale[name] = rng.uniform(0.5, 1.5, n).astype(np.float32) / np.float32(70 * np.sqrt(k))
        weights.dense[name] = w.astype(np.float32) * weights.scale[name][:, None]
    for i in range(dims.layers):
        weights.norms[f"attn.{i}"] = rng.uniform(0.5, 1.5, dims.hidden).astype(np.float32)
        weights.norms[f"ffn.{i}"] = rng.uniform(0.5, 1.5, dims.hidden).astype(np.float32)
    weights.norms["final"] = rng.uniform(0.5, 1.5, dims.hidden).astype(np.float32)
    weights.embedding = rng.normal(size=(dims.vocab, dims.hidden)).astype(np.float32)
    weights.cos, weights.sin = _rope_table(dims, 10000)
    if any(dims.ropes):
        weights.local = _rope_table(dims, 100)
    return _with_extras(weights, rng)


def _rope_table(dims: Dims, base: float) -> tuple[F32, F32]:
    angle = np.arange(dims.max_positions)[:, None] / base ** (np.arange(dims.head_dim // 2) * 2 / dims.head_dim)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def _with_extras(weights: Weights, rng: np.random.Generator) -> Weights:
    dims = weights.dims
    for i in range(dims.layers):
        if dims.bias:
            weights.biases[f"qkv.{i}"] = rng.normal(size=dims.shapes()[f"qkv.{i}"][0]).astype(np.float32)
        for kind in ("q", "k") if dims.head_norms else ():
            weights.norms[f"{kind}.{i}"] = rng.uniform(0.5, 1.5, dims.head_dim).astype(np.float32)
        for kind in ("attn_out", "ffn_out") if dims.out_norms else ():
            weights.norms[f"{kind}.{i}"] = rng.uniform(0.5, 1.5, dims.hidden).astype(np.float32)
    return weights


def pack(variant: str, weights: Weights, name: str) -> npt.NDArray[np.uint8]:
    if name in weights.bits:
        return _native.pack_bf16(variant, weights.bits[name])
    if name in weights.nibbles:
        return _native.pack_nib4(variant, *weights.nibbles[name], weights.wide[name])
    return _native.pack_int8(variant, weights.w8[name], weights.wide[name])


def native_model(variant: str, weights: Weights, threads: int | list[int] = 1) -> _native.Model:
    model = _native.Model(variant, weights.dims.spec(), _native.Team(threads))
    model.set_embedding(weights.embedding, "f32")
    model.set_rope(weights.cos, weights.sin)
    if weights.local:
        model.set_rope(*weights.local, 1)
    for name, norm in weights.norms.items():
        model.set_norm(name, norm)
    for name, bias in weights.biases.items():
        model.set_bias(name, bias)
    for name, (n, k) in weights.dims.shapes().items():
        wide = None if name in weights.bits else weights.wide[name]
        model.set_linear(name, weights.formats[name], n, k, pack(variant, weights, name), weights.scale.get(name), wide)
    model.finish()
    return model


def i32(values: Any) -> npt.NDArray[np.int32]:
    return np.array(values, np.int32)


class Session:
    """One sequence on a native model: its blocks, and feeding tokens in chunks."""

    def __init__(self, model: _native.Model, kv: _native.KvCache, blocks: list[int]) -> None:
        self.model, self.kv, self.blocks, self.done = model, kv, blocks, 0

    def feed(self, tokens: list[int]) -> F32:
        """Logits of every fed token."""
        n = len(tokens)
        self.model.forward(self.kv, i32(tokens), i32([0, n]), i32([self.done]), i32([self.blocks]), i32(range(n)))
        self.done += n
        return self.model.logits()


def run_chunked(
    model: _native.Model, tokens: list[int], chunk: int, blocks: list[int] | None = None, kv: Kv = "bf16"
) -> F32:
    """Logits of every token, fed `chunk` at a time."""
    need = -(-len(tokens) // BLOCK)
    blocks = blocks or list(range(need))
    session = Session(model, _native.KvCache(model, max(blocks) + 1, kv), blocks)
    return np.concatenate([session.feed(tokens[i : i + chunk]) for i in range(0, len(tokens), chunk)])


# ---- the same model in NumPy ----


def _rms_norm(x: Any, weight: Any, eps: float) -> Any:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def _rotate(x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    c, s = cos[: len(x), None], sin[: len(x), None]
    return np.concatenate([a * c - b * s, b * c + a * s], -1)


def _softcap(x: Any, cap: float) -> Any:
    return cap * np.tanh(x / cap) if cap else x


def _attention(dims: Dims, qkv: Any, weights: Weights, layer: int) -> Any:
    t, hd, group = len(qkv), dims.head_dim, dims.heads // dims.kv_heads
    parts = (qkv + weights.biases.get(f"qkv.{layer}", np.float32(0))).reshape(t, -1, hd)
    q, k, v = np.split(parts, [dims.heads, dims.heads + dims.kv_heads], axis=1)
    if dims.head_norms:
        q, k = (_rms_norm(x, weights.norms[f"{n}.{layer}"], dims.norm_eps) for n, x in (("q", q), ("k", k)))
    q, k = _rotate(q, *weights.rope(layer)), _rotate(k, *weights.rope(layer))
    out = np.zeros_like(q)
    distance = np.arange(t)[:, None] - np.arange(t)
    seen = (distance >= 0) & (distance < (dims.windows[layer] if dims.windows and dims.windows[layer] else t))
    scale = dims.attention_scale or 1 / np.sqrt(hd)
    for h in range(dims.heads):
        s = np.where(seen, _softcap(q[:, h] @ k[:, h // group].T * scale, dims.attention_softcap), -np.inf)
        p = np.exp(s - s.max(-1, keepdims=True))
        out[:, h] = p @ v[:, h // group] / p.sum(-1, keepdims=True)
    return out.reshape(t, -1)


def _quantized(weights: Weights, name: str, x: Any) -> Any:
    """What quantization makes of the activations, in float64."""
    if name in weights.bits:
        return from_bf16(to_bf16(x)).astype(np.float64)
    wide = np.zeros(x.shape[-1], bool)
    wide[weights.wide[name]] = True
    limit = np.where(wide, 32512.0, 127.0)
    step = (np.abs(x) / limit).max(-1, keepdims=True)
    return np.rint(x / step) * step


def numpy_logits(weights: Weights, tokens: list[int], added: Callable[[str, Any], Any] = lambda name, x: 0.0) -> Any:
    """`added(linear, its input)` joins what each linear gives."""
    dims = weights.dims

    def linear(name: str, x: Any) -> Any:
        return _quantized(weights, name, x) @ weights.dense[name].T.astype(np.float64) + added(name, x)

    def behind(name: str, x: Any) -> Any:
        return _rms_norm(x, weights.norms[name], dims.norm_eps) if dims.out_norms else x

    x = weights.embedding[tokens].astype(np.float64) * dims.embedding_scale
    for i in range(dims.layers):
        normed = _rms_norm(x, weights.norms[f"attn.{i}"], dims.norm_eps)
        mixed = linear(f"o.{i}", _attention(dims, linear(f"qkv.{i}", normed), weights, i))
        x = x + behind(f"attn_out.{i}", mixed)
        normed = _rms_norm(x, weights.norms[f"ffn.{i}"], dims.norm_eps)
        both = linear(f"gate_up.{i}", normed).reshape(len(x), -1, 2, 16)
        gate, up = both[:, :, 0].reshape(len(x), -1), both[:, :, 1].reshape(len(x), -1)
        x = x + behind(f"ffn_out.{i}", linear(f"down.{i}", _activated(dims, gate) * up))
    logits = linear("head", _rms_norm(x, weights.norms["final"], dims.norm_eps))
    return _softcap(logits, dims.logit_softcap)


def _activated(dims: Dims, gate: Any) -> Any:
    if dims.activation == "silu":
        return gate / (1 + np.exp(-gate))
    return gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
