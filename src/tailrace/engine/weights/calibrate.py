"""Which input channels of each linear layer carry 16 bits: measured once, on a short built-in text.

A few channels of a transformer's activations are many times larger than the rest. Quantized to 8 bits with one step a
row they would take the precision of all others, so they get 16-bit integers ("wide" channels) and keep the same step
(docs/decisions/001-arithmetic.md). This file runs a plain float32 forward pass of the llama architecture, one layer's
weights in memory at a time, keeps the largest magnitude seen in every input channel, and chooses. It decides accuracy,
never correctness: any choice gives a valid and batch-invariant model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
Weights = Callable[[str], F32]

WIDE_STEP = 64  # wide channels come in whole K blocks of the tile kernels
WIDE_SHARE = 8  # one channel in this many is wide: docs/decisions/001-arithmetic.md
WIDE_LIMIT = 127 * 256  # largest 16-bit activation: 256 * high + low with both halves in -127..127


class Shape(Protocol):
    """What the forward pass has to know of a model."""

    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def norm_eps(self) -> float: ...


def calibrate(shape: Shape, embedded: F32, cos: F32, sin: F32, weights: Weights) -> dict[str, I32]:
    """Wide channels of every linear: "qkv.{l}", "o.{l}", "gate_up.{l}", "down.{l}" and "head".

    embedded [T, hidden]: the embedding rows of the calibration tokens, one sequence from position 0. cos, sin
    [>= T, rope_dim/2]: rotation of half-split pairs (i, i + rope_dim/2), so the rows of q and k must already be in that
    order. weights(name) gives float32 [N, K] for "q.{l}", "k.{l}", "v.{l}", "o.{l}", "gate.{l}", "up.{l}", "down.{l}"
    and float32 [hidden] for "attn_norm.{l}", "ffn_norm.{l}", "final_norm"; it is asked for each once, in layer order.
    """
    peaks = channel_peaks(shape, embedded, cos, sin, weights)
    return {name: choose_wide(peak) for name, peak in peaks.items()}


def choose_wide(peak: F32) -> I32:
    """The channels to store in 16 bits, ascending, a multiple of 64 of them; `peak` [K] is the largest |x| of each."""
    count = wide_count(peak.size)
    if count == 0:
        return np.empty(0, np.int32)
    largest = np.argpartition(-peak, count - 1)[:count]
    return np.sort(largest).astype(np.int32)


def wide_count(channels: int) -> int:
    """How many of a linear's input channels are wide: one in eight, in whole blocks, at least one block."""
    wanted = max(WIDE_STEP, channels // WIDE_SHARE // WIDE_STEP * WIDE_STEP)
    return min(wanted, channels // WIDE_STEP * WIDE_STEP, _exact_limit(channels))


def channel_peaks(shape: Shape, embedded: F32, cos: F32, sin: F32, weights: Weights) -> dict[str, F32]:
    """Largest magnitude of every input channel of every linear; arguments as for `calibrate`."""
    peaks: dict[str, F32] = {}

    def seen(name: str, x: F32) -> F32:
        peaks[name] = np.abs(x).max(axis=0)
        return x

    x = embedded.astype(np.float32)
    for layer in range(shape.layers):
        h = seen(f"qkv.{layer}", _rms_norm(x, weights(f"attn_norm.{layer}"), shape.norm_eps))
        q = _rotate(_heads(h @ weights(f"q.{layer}").T, shape.heads), cos, sin)
        k = _rotate(_heads(h @ weights(f"k.{layer}").T, shape.kv_heads), cos, sin)
        v = _heads(h @ weights(f"v.{layer}").T, shape.kv_heads)
        h = seen(f"o.{layer}", _attention(q, k, v))
        x = x + h @ weights(f"o.{layer}").T
        h = seen(f"gate_up.{layer}", _rms_norm(x, weights(f"ffn_norm.{layer}"), shape.norm_eps))
        h = _silu(h @ weights(f"gate.{layer}").T) * (h @ weights(f"up.{layer}").T)
        x = x + seen(f"down.{layer}", h) @ weights(f"down.{layer}").T
    seen("head", _rms_norm(x, weights("final_norm"), shape.norm_eps))
    return peaks


def _exact_limit(channels: int) -> int:
    """The most wide channels for which the int32 accumulator cannot overflow, whatever the numbers are."""
    room = 2**31 - 1 - channels * 127 * 127
    return max(0, room // (127 * (WIDE_LIMIT - 127)) // WIDE_STEP * WIDE_STEP)


def _rms_norm(x: F32, weight: F32, eps: float) -> F32:
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    normed: F32 = x / np.sqrt(mean_square + np.float32(eps)) * weight
    return normed


def _heads(x: F32, heads: int) -> F32:
    """[T, heads * head_dim] -> [heads, T, head_dim]."""
    return x.reshape(x.shape[0], heads, -1).transpose(1, 0, 2)


def _rotate(x: F32, cos: F32, sin: F32) -> F32:
    """Rotary position embedding of [heads, T, head_dim]; dimensions past the rotated ones pass through."""
    tokens, half = x.shape[1], cos.shape[1]
    c, s = cos[:tokens], sin[:tokens]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([first * c - second * s, second * c + first * s, rest], axis=-1)


def _attention(q: F32, k: F32, v: F32) -> F32:
    """Causal attention; q [heads, T, D], k and v [kv_heads, T, D] -> [T, heads * D]."""
    heads, tokens, dim = q.shape
    shared = heads // k.shape[0]
    future = np.triu(np.full((tokens, tokens), -np.inf, np.float32), 1)
    out = np.empty((tokens, heads, dim), np.float32)
    for head in range(heads):  # one head at a time: the score matrix is the largest temporary
        scores = q[head] @ k[head // shared].T / np.float32(np.sqrt(dim)) + future
        weight = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[:, head] = weight @ v[head // shared] / weight.sum(axis=-1, keepdims=True)
    return out.reshape(tokens, heads * dim)


def _silu(x: F32) -> F32:
    # tanh form of the sigmoid: cannot overflow
    y: F32 = x * (np.float32(0.5) + np.float32(0.5) * np.tanh(np.float32(0.5) * x))
    return y
