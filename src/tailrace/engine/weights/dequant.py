"""Stored tensor blocks to numbers, in vectorised NumPy, bit-exact to the format's reference.

Owns plain numbers and the formats whose blocks hold 32 values; `dequant_k` has those of 256. Refuses (by an assertion)
every type that DEQUANTIZABLE does not list: `engine.models` has turned such a file away before. All functions take raw
bytes uint8 [rows, bytes per row] as `Checkpoint.raw` gives them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tailrace.engine.weights import dequant_k
from tailrace.engine.weights.blocks import F32, IQ4_VALUES, U8, as_blocks, half, nibbles, scaled, signed

AFFINE4 = ("Q4_0", "Q4_1", "Q4_K")
CHUNK_BYTES = 1 << 20  # of stored blocks worked on at a time: temporaries stay in cache and memory stays bounded
PLAIN = ("F32", "F16", "BF16")


def dequantize(raw: U8, type_name: str) -> F32:
    """float32 [rows, values per row]."""
    assert type_name in _DEQUANTIZE, type_name
    convert = _DEQUANTIZE[type_name]
    rows = max(1, CHUNK_BYTES // raw.shape[1])
    if type_name in PLAIN or len(raw) <= rows:
        return convert(raw)
    first = convert(raw[:rows])
    values = np.empty((len(raw), first.shape[1]), np.float32)
    values[:rows] = first
    for start in range(rows, len(raw), rows):
        values[start : start + rows] = convert(raw[start : start + rows])
    return values


def affine4(raw: U8, type_name: str) -> tuple[U8, F32, F32]:
    """(q uint8 [N, K] in 0..15, d float32 [N, K/32], m float32 [N, K/32]) with value = d * q + m, per group of 32."""
    assert type_name in AFFINE4, type_name
    if type_name == "Q4_K":
        return dequant_k.affine4(raw)
    blocks = as_blocks(raw, 18 if type_name == "Q4_0" else 20)
    d = half(blocks, 0)
    m = d * np.float32(-8) if type_name == "Q4_0" else half(blocks, 2)
    return nibbles(blocks[..., -16:]), d, m


def _q4_0(raw: U8) -> F32:
    blocks = as_blocks(raw, 18)
    return scaled(signed(nibbles(blocks[..., 2:]), 8), half(blocks, 0))


def _q4_1(raw: U8) -> F32:
    q, d, m = affine4(raw, "Q4_1")
    return scaled(q.astype(np.float32), d, m)


def _q5_0(raw: U8) -> F32:
    blocks = as_blocks(raw, 22)
    return scaled(signed(_fifth_bits(blocks, 2), 16), half(blocks, 0))


def _q5_1(raw: U8) -> F32:
    blocks = as_blocks(raw, 24)
    return scaled(_fifth_bits(blocks, 4).astype(np.float32), half(blocks, 0), half(blocks, 2))


def _fifth_bits(blocks: U8, start: int) -> U8:
    """Numbers 0..31: at `start` 32 high bits, the first value's lowest, then 16 bytes of low halves."""
    high = np.unpackbits(blocks[..., start : start + 4], axis=-1, bitorder="little")
    q = nibbles(blocks[..., start + 4 :])
    q |= high.reshape(q.shape) << 4
    return q


def _q8_0(raw: U8) -> F32:
    blocks = as_blocks(raw, 34)
    values = blocks[..., 2:].view(np.int8).astype(np.float32)
    return scaled(values.reshape(raw.shape[0], -1), half(blocks, 0))


def _iq4_nl(raw: U8) -> F32:
    blocks = as_blocks(raw, 18)
    return scaled(IQ4_VALUES[nibbles(blocks[..., 2:])], half(blocks, 0))


def _f16(raw: U8) -> F32:
    return raw.view(np.float16).astype(np.float32)


def _bf16(raw: U8) -> F32:
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _f32(raw: U8) -> F32:
    return raw.view(np.float32)


_DEQUANTIZE: dict[str, Callable[[U8], F32]] = {
    "F32": _f32, "F16": _f16, "BF16": _bf16,
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0, "IQ4_NL": _iq4_nl,
    "Q2_K": dequant_k.q2_k, "Q3_K": dequant_k.q3_k, "Q4_K": dequant_k.q4_k, "Q5_K": dequant_k.q5_k,
    "Q6_K": dequant_k.q6_k, "IQ4_XS": dequant_k.iq4_xs,
}  # fmt: skip
DEQUANTIZABLE = tuple(_DEQUANTIZE)
