"""Which input channels of each linear layer carry 16 bits: measured once, on a short built-in text.

A few channels of a transformer's activations are many times larger than the rest. Quantized to 8 bits with one step a
row they would take the precision of all others, so they get 16-bit integers ("wide" channels) and keep the same step
(docs/decisions/001-arithmetic.md). This file runs a plain float32 forward pass of the declared decoder, one layer's
weights in memory at a time, keeps the largest magnitude seen in every input channel, and chooses. It decides accuracy,
never correctness: any choice gives a valid and batch-invariant model. Magnitudes are compared in three digits, so that
the order in which products are summed (another BLAS, another number of threads) does not choose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from tailrace.engine.models.base import LayerTensors, ModelSpec

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
Weights = Callable[[str], F32]
Ropes = Sequence[tuple[F32, F32]]  # (cos, sin) [positions, rope dim / 2] of each rope

WIDE_STEP = 64  # wide channels come in whole K blocks of the tile kernels
WIDE_SHARE = 8  # one channel in this many is wide: docs/decisions/001-arithmetic.md
DIGITS = 3  # significant decimal digits of a magnitude that the choice looks at
WIDE_LIMIT = 127 * 256  # largest 16-bit activation: 256 * high + low with both halves in -127..127


@contextmanager
def quiet() -> Iterator[None]:
    """Decorates what runs on weights that may be damaged, in each thread: they end in errors, not in warnings."""
    with np.errstate(over="ignore", invalid="ignore"):
        yield


def calibrate(spec: ModelSpec, embedded: F32, ropes: Ropes, weights: Weights, *, threads: int = 1) -> dict[str, I32]:
    """Wide channels of every linear: "qkv.{l}", "o.{l}", "gate_up.{l}", "down.{l}" and "head".

    embedded [T, hidden]: the embedding rows of the calibration tokens, scaled, one sequence from position 0. `ropes` of
    at least T positions rotate half-split pairs (i, i + rope_dim/2), so the rows of q and k must already be in that
    order. weights("q.{l}") gives float32 [N, K] of that part of layer l, weights("attn_norm.{l}") a vector, and so for
    every part that the layer has; weights("final_norm") comes last. It is asked for each once, in layer order.
    """
    peaks = channel_peaks(spec, embedded, ropes, weights, threads=threads)
    return {name: choose_wide(peak) for name, peak in peaks.items()}


def choose_wide(peak: F32) -> I32:
    """The channels to store in 16 bits, ascending, a multiple of 64 of them; `peak` [K] is the largest |x| of each.

    Of magnitudes that agree in DIGITS digits the lower channels come first.
    """
    largest = np.argsort(-_rounded(peak), kind="stable")[: wide_count(peak.size)]
    return np.sort(largest).astype(np.int32)


def wide_count(channels: int) -> int:
    """How many of a linear's input channels are wide: one in eight, in whole blocks, at least one block."""
    wanted = max(WIDE_STEP, channels // WIDE_SHARE // WIDE_STEP * WIDE_STEP)
    return min(wanted, channels // WIDE_STEP * WIDE_STEP, _exact_limit(channels))


def channel_peaks(
    spec: ModelSpec, embedded: F32, ropes: Ropes, weights: Weights, *, threads: int = 1
) -> dict[str, F32]:
    """Largest magnitude of every input channel of every linear; arguments as for `calibrate`."""
    # BLAS threads spin while they wait, which on a shared machine takes three times the CPU time; ours sleep.
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(threads) as pool:
        return _Forward(spec, ropes, weights, pool, threads).peaks(embedded.astype(np.float32))


class _Forward:
    """One pass; products are divided among the pool's threads by output rows."""

    def __init__(self, spec: ModelSpec, ropes: Ropes, weights: Weights, pool: ThreadPoolExecutor, threads: int) -> None:
        self._spec = spec
        self._ropes = ropes
        self._weights = weights
        self._pool = pool
        self._threads = threads
        self._peaks: dict[str, F32] = {}

    def peaks(self, x: F32) -> dict[str, F32]:
        for layer, block in enumerate(self._spec.blocks):
            x = x + self._attention(layer, block, x)
            x = x + self._feed_forward(layer, block, x)
        self._seen("head", self._norm("final_norm", x))
        return self._peaks

    def _attention(self, layer: int, block: LayerTensors, x: F32) -> F32:
        spec = self._spec
        h = self._seen(f"qkv.{layer}", self._norm(f"attn_norm.{layer}", x))
        q = self._projected(layer, h, "q", spec.heads)
        k = self._projected(layer, h, "k", spec.kv_heads)
        v = self._projected(layer, h, "v", spec.kv_heads)
        cos, sin = self._ropes[block.rope]
        mixed = _attend(spec, block.window, _rotate(q, cos, sin), _rotate(k, cos, sin), v)
        y = self._times(self._seen(f"o.{layer}", mixed), f"o.{layer}")
        return y if block.attn_out_norm is None else self._norm(f"attn_out_norm.{layer}", y)

    def _projected(self, layer: int, h: F32, part: str, heads: int) -> F32:
        """[heads, T, head_dim] with bias and norm, where the layer has them."""
        block, y = self._spec.blocks[layer], self._times(h, f"{part}.{layer}")
        if getattr(block, f"{part}_bias") is not None:
            y = y + self._weights(f"{part}_bias.{layer}")
        y = _heads(y, heads)
        return self._norm(f"{part}_norm.{layer}", y) if getattr(block, f"{part}_norm", None) is not None else y

    def _feed_forward(self, layer: int, block: LayerTensors, x: F32) -> F32:
        h = self._seen(f"gate_up.{layer}", self._norm(f"ffn_norm.{layer}", x))
        h = _ACTIVATIONS[self._spec.activation](self._times(h, f"gate.{layer}")) * self._times(h, f"up.{layer}")
        y = self._times(self._seen(f"down.{layer}", h), f"down.{layer}")
        return y if block.ffn_out_norm is None else self._norm(f"ffn_out_norm.{layer}", y)

    def _norm(self, name: str, x: F32) -> F32:
        return _rms_norm(x, self._weights(name), self._spec.norm_eps)

    def _seen(self, name: str, x: F32) -> F32:
        self._peaks[name] = np.abs(x).max(axis=0)
        return x

    def _times(self, x: F32, name: str) -> F32:
        @quiet()
        def product(rows: F32) -> F32:
            y: F32 = x @ rows.T
            return y

        return np.concatenate(list(self._pool.map(product, np.array_split(self._weights(name), self._threads))), axis=1)


def _rounded(x: F32) -> npt.NDArray[np.float64]:
    """Non-negative `x` to DIGITS significant decimal digits."""
    wide = x.astype(np.float64)
    tenth = np.floor(np.log10(wide, out=np.zeros_like(wide), where=wide > 0))
    unit = 10.0 ** (tenth - (DIGITS - 1))
    rounded: npt.NDArray[np.float64] = np.rint(wide / unit) * unit
    return rounded


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


def _attend(spec: ModelSpec, window: int, q: F32, k: F32, v: F32) -> F32:
    """Causal attention; q [heads, T, D], k and v [kv_heads, T, D] -> [T, heads * D]."""
    heads, tokens, dim = q.shape
    shared = heads // k.shape[0]
    scale = np.float32(spec.attention_scale or dim**-0.5)
    distance = np.arange(tokens)[:, None] - np.arange(tokens)
    seen = (distance >= 0) & (distance < (window or tokens))
    out = np.empty((tokens, heads, dim), np.float32)
    for head in range(heads):  # one head at a time: the score matrix is the largest temporary
        scores = _capped(q[head] @ k[head // shared].T * scale, spec.attention_softcap)
        scores = np.where(seen, scores, np.float32(-np.inf))
        weight = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[:, head] = weight @ v[head // shared] / weight.sum(axis=-1, keepdims=True)
    return out.reshape(tokens, heads * dim)


def _capped(x: F32, cap: float) -> F32:
    return np.float32(cap) * np.tanh(x / np.float32(cap)) if cap else x


def _silu(x: F32) -> F32:
    # tanh form of the sigmoid: cannot overflow
    y: F32 = x * (np.float32(0.5) + np.float32(0.5) * np.tanh(np.float32(0.5) * x))
    return y


def _gelu(x: F32) -> F32:
    y: F32 = (
        np.float32(0.5) * x * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)))
    )
    return y


_ACTIVATIONS = {"silu": _silu, "gelu": _gelu}
