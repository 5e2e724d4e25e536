"""Canonical quantization: the integer weights every kernel variant must reproduce.

A linear layer is int8 weights `w8 [N, K]` with one float32 scale per output row (docs/decisions/001-arithmetic.md).
There are two ways to get there:

    float rows      w8 = rint(w / scale)                      scale = max|w| / 127
    4-bit groups    w8 = (a * q + b) >> 6     q in 0..15      a, b int16 for each row and group of 32

The second form keeps the file's own 4-bit numbers, so a packed layout may store those and expand them in registers: it
is the same matrix in less memory, never another result. This file owns the numbers; it knows no file format, no packed
layout and no instruction set, and it refuses weights that are not finite.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tailrace.errors import ModelFileError

F32 = npt.NDArray[np.float32]
I8 = npt.NDArray[np.int8]
I16 = npt.NDArray[np.int16]
U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]

GROUP = 32  # weights that share a scale and a minimum in the 4-bit formats
FRACTION_BITS = 6  # of the fixed-point numbers a and b
LIMIT = 127  # int8 weights use the symmetric range: -128 never appears
TINY = np.float32(1e-30)  # a row whose largest weight is below this is stored as zero
CHUNK_VALUES = 1 << 20  # values worked on at a time: temporaries stay in cache and memory stays bounded


@dataclass(frozen=True)
class Int8Weights:
    """w[n, k] is approximately `w8[n, k] * scale[n]`; w8 in -127..127."""

    w8: I8
    scale: F32


@dataclass(frozen=True)
class Affine4Weights:
    """w[n, k] is approximately `((a * q + b) >> 6) * scale[n]`, with a, b of the weight's group of 32.

    q [N, K] in 0..15; a, b [N, K/32] int16. For every q in 0..15, a*q and a*q + b fit int16 and the shifted value is
    in -127..127, so a kernel may compute in 16 bits without saturation.
    """

    q: U8
    a: I16
    b: I16
    scale: F32

    def to_int8(self) -> Int8Weights:
        """The same matrix with its int8 weights written out."""
        rows, columns = self.q.shape
        w8 = np.empty((rows, columns), np.int8)
        for part in _row_chunks(rows, columns):
            q = self.q[part].reshape(-1, columns // GROUP, GROUP).astype(np.int16)
            q *= self.a[part, :, None]
            q += self.b[part, :, None]
            q >>= FRACTION_BITS
            w8[part] = q.reshape(-1, columns)
        return Int8Weights(w8, self.scale)


def quantize_rows(w: F32, first_row: int = 0) -> Int8Weights:
    """Quantize float32 rows [N, K] to int8, one scale a row, rounding half to even.

    `first_row`: the number of the first one, for messages. Raises ModelFileError when a weight is NaN or infinite.
    """
    rows, columns = w.shape
    w8 = np.empty((rows, columns), np.int8)
    scale = np.empty(rows, np.float32)
    for part in _row_chunks(rows, columns):
        chunk = w[part]
        scale[part] = _row_scale(np.maximum(chunk.max(axis=1), -chunk.min(axis=1)), first_row + part.start)
        w8[part] = _round_int8(chunk, scale[part])
    return Int8Weights(w8, scale)


def quantize_affine4(q: U8, d: F32, m: F32, first_row: int = 0) -> Affine4Weights:
    """Put 4-bit groups `w = d * q + m` on one scale a row, keeping q as it is.

    q [N, K] in 0..15, K a multiple of 32; d, m [N, K/32]. (A symmetric format with offset 8 passes m = -8 * d.)
    `first_row`: the number of the first one, for messages. Raises ModelFileError when a d or m is NaN or infinite.
    """
    assert q.shape[1] == d.shape[1] * GROUP and d.shape == m.shape
    # Linear in q, so the ends of the range bound it. a is off by at most 1/2 and b by 1/2, so |a*q + b - 32| is at most
    # 64*127 + 8, which the shift takes to -127..127: no clamp is needed.
    ends = np.maximum(np.abs(m), np.abs(15 * d + m)).max(axis=1)
    scale = _row_scale(ends, first_row)
    per_unit = np.divide(1 << FRACTION_BITS, scale, out=np.zeros_like(scale), where=scale > 0)[:, None]
    half = 1 << (FRACTION_BITS - 1)  # the shift rounds down; half a unit makes it round to nearest
    a = np.rint(d * per_unit).astype(np.int16)
    b = (np.rint(m * per_unit) + half).astype(np.int16)
    return Affine4Weights(q, a, b, scale)


def round_bf16(w: F32) -> U16:
    """Round float32 to the bits of bfloat16, half to even; NaN stays NaN and overflow becomes infinity."""
    flat = np.ascontiguousarray(w).reshape(-1)
    out = np.empty(flat.size, np.uint16)
    for start in range(0, flat.size, CHUNK_VALUES):
        part = slice(start, start + CHUNK_VALUES)
        out[part] = _bf16_bits(flat[part])
    return out.reshape(w.shape)


def widen_bf16(bits: U16) -> F32:
    """The float32 values of bfloat16 bits, exact."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _row_scale(largest: F32, first_row: int) -> F32:
    """One step a row so that the largest magnitude becomes 127; 0 for a row of zeros."""
    bad = np.flatnonzero(~np.isfinite(largest))
    if bad.size:
        raise ModelFileError(f"row {first_row + int(bad[0])} of a weight matrix holds NaN or infinity")
    return np.where(largest < TINY, np.float32(0), largest / np.float32(LIMIT)).astype(np.float32)


def _round_int8(w: F32, scale: F32) -> I8:
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    rounded = np.rint(w * inverse[:, None])
    return np.clip(rounded, -LIMIT, LIMIT, out=rounded).astype(np.int8)


def _bf16_bits(w: F32) -> U16:
    bits = w.view(np.uint32)
    # Adding the lowest kept bit to 0x7FFF carries exactly when the dropped half is above one half, or equal and odd.
    rounded = (bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(w), quiet, rounded).astype(np.uint16)


def _row_chunks(rows: int, columns: int) -> Iterator[slice]:
    size = max(1, CHUNK_VALUES // max(1, columns))
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))
