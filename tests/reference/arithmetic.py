"""The two arithmetics the reference forward pass can run with: plain float32, and the engine's integers.

Both see a linear layer under the engine's names ("qkv.0", "o.0", "gate_up.0", "down.0", "head") and keys and values
as they go into the cache. `IntegerArithmetic` follows docs/decisions/001-arithmetic.md number by number, in float64 so
that every integer is exact; it shares the canonical weights with the engine and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]


class FloatArithmetic:
    """Plain float32; also the contract."""

    def linear(self, name: str, x: F32, w: F32) -> F32:
        """x [T, K] times w [N, K] transposed."""
        return x @ w.T

    def cached(self, x: F32) -> F32:
        """What attention reads back of the keys (after rope) or values [kv_heads, T, D] it stored."""
        return x


@dataclass(frozen=True)
class Linear8:
    """Canonical weights of one linear: int8 [N, K], one scale a row, the 16-bit input channels."""

    w8: npt.NDArray[np.int8]
    scale: F32
    wide: npt.NDArray[np.int32]


class IntegerArithmetic:
    """int8 weights, mixed-width activations with one step a row, exact sums, bf16 keys and values."""

    def __init__(self, linears: Mapping[str, Linear8]) -> None:
        self._linears = linears

    def linear(self, name: str, x: F32, w: F32) -> F32:
        linear = self._linears[name]
        q, step = quantize_activations(x, linear.wide)
        total = q.astype(np.float64) @ linear.w8.T.astype(np.float64)
        assert np.abs(total).max(initial=0) < 2**31
        return (total.astype(np.float32) * linear.scale) * step[:, None]

    def cached(self, x: F32) -> F32:
        return round_bf16(x)


class Bf16Arithmetic:
    """bf16 weights and activations, float32 sums, bf16 keys and values: the arithmetic of `--weights bf16`."""

    def linear(self, name: str, x: F32, w: F32) -> F32:
        return round_bf16(x) @ round_bf16(w).T

    def cached(self, x: F32) -> F32:
        return round_bf16(x)


def quantize_activations(x: F32, wide: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], F32]:
    """Integers [T, K] and the step of each row: narrow channels in -127..127, wide ones in -32512..32512."""
    limit = np.full(x.shape[1], 127, np.float32)
    limit[wide] = 32512
    step = (np.abs(x) / limit).max(axis=1).astype(np.float32)
    inverse = np.divide(1, step, out=np.zeros_like(step), where=step > 0)
    return np.clip(np.rint(x * inverse[:, None]), -limit, limit).astype(np.int32), step


def round_bf16(x: F32) -> F32:
    """Nearest bfloat16, half to even, as float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF0000)).view(np.float32)
