"""Key channels of one size, for a cache whose int8 step is set by the largest.

Where heads are normed, the norm's weights say how large each channel of a key gets, tens of times apart. A
score only sees products of query and key channels, so a factor may move from the key's norm to the query's. The two
channels that rope rotates into each other take one factor. Factors are powers of two: nothing is rounded, and scores
over a bf16 cache keep their bits. As SmoothQuant (Xiao et al., 2022, arXiv:2211.10438), between query and key.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tailrace.engine.models.base import ModelSpec

F32 = npt.NDArray[np.float32]

_SMALLEST = 1 / 128  # of the largest channel: smaller ones are not worth more room


def even_keys(norms: dict[str, F32], spec: ModelSpec) -> dict[str, F32]:
    """`norms` by the executor's names, with the sizes of key channels moved to "q.{layer}" where heads are normed."""
    result = dict(norms)
    for layer, block in enumerate(spec.blocks):
        query, key = f"q.{layer}", f"k.{layer}"
        if query in norms and key in norms:
            factor = channel_factors(norms[key], spec.ropes[block.rope].dim)
            result |= {query: norms[query] * factor, key: norms[key] / factor}
    return result


def channel_factors(weight: F32, rope_dim: int) -> F32:
    """Powers of two [head_dim], as large as the channels are beside one another; equal for both of a rotated pair."""
    size = np.abs(weight).astype(np.float64)
    half = rope_dim // 2
    size[:half] = size[half:rope_dim] = np.hypot(size[:half], size[half:rope_dim]) / np.sqrt(2)
    if not (np.isfinite(size).all() and size.max() > 0):
        return np.ones_like(weight)
    size = np.maximum(size, size.max() * _SMALLEST)
    exponent = np.rint(np.log2(size) - np.log2(size).mean())
    return np.asarray(np.exp2(exponent), dtype=np.float32)
