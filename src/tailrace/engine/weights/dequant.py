"""Stored tensor blocks to numbers, in vectorised NumPy, bit-exact to the format's reference.

Owns the block layouts it lists in DEQUANTIZABLE; refuses (by an assertion) every other: `engine.models` has turned
such a file away before. All functions take raw bytes uint8 [rows, bytes per row] as `GgufFile.raw` gives them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]

GROUP = 32  # values in a block of Q4_0, Q4_1 and Q8_0
AFFINE4 = ("Q4_0", "Q4_1")


def dequantize(raw: U8, type_name: str) -> F32:
    """float32 [rows, values per row]."""
    assert type_name in _DEQUANTIZE, type_name
    return _DEQUANTIZE[type_name](raw)


def affine4(raw: U8, type_name: str) -> tuple[U8, F32, F32]:
    """(q uint8 [N, K] in 0..15, d float32 [N, K/32], m float32 [N, K/32]) with value = d * q + m, per group of 32."""
    assert type_name in AFFINE4, type_name
    blocks = _blocks(raw, 18 if type_name == "Q4_0" else 20)
    d = _half(blocks, 0)
    m = d * np.float32(-8) if type_name == "Q4_0" else _half(blocks, 2)
    return _nibbles(blocks[..., -16:]), d, m


def _blocks(raw: U8, size: int) -> U8:
    return raw.reshape(raw.shape[0], -1, size)


def _half(blocks: U8, start: int) -> F32:
    """The float16 at byte `start` of each block, as float32 [N, blocks]."""
    return np.ascontiguousarray(blocks[..., start : start + 2]).view(np.float16)[..., 0].astype(np.float32)


def _nibbles(packed: U8) -> U8:
    """[N, blocks, 16] bytes to [N, blocks * 32]: a block's low halves come first, then its high halves."""
    rows, blocks, _ = packed.shape
    q = np.empty((rows, blocks, GROUP), np.uint8)
    np.bitwise_and(packed, 15, out=q[..., :16])
    np.right_shift(packed, 4, out=q[..., 16:])
    return q.reshape(rows, blocks * GROUP)


def _scaled(values: F32, d: F32, m: F32 | None = None) -> F32:
    """values * d (+ m) in place, group by group."""
    groups = values.reshape(*d.shape, GROUP)
    groups *= d[..., None]
    if m is not None:
        groups += m[..., None]
    return values


def _q4_0(raw: U8) -> F32:
    q, d, _ = affine4(raw, "Q4_0")
    values = q.astype(np.float32)
    values -= np.float32(8)
    return _scaled(values, d)


def _q4_1(raw: U8) -> F32:
    q, d, m = affine4(raw, "Q4_1")
    return _scaled(q.astype(np.float32), d, m)


def _q8_0(raw: U8) -> F32:
    blocks = _blocks(raw, 34)
    values = blocks[..., 2:].view(np.int8).astype(np.float32)
    return _scaled(values.reshape(raw.shape[0], -1), _half(blocks, 0))


def _f16(raw: U8) -> F32:
    return raw.view(np.float16).astype(np.float32)


def _bf16(raw: U8) -> F32:
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _f32(raw: U8) -> F32:
    return raw.view(np.float32)


_DEQUANTIZE: dict[str, Callable[[U8], F32]] = {
    "F32": _f32, "F16": _f16, "BF16": _bf16, "Q4_0": _q4_0, "Q4_1": _q4_1, "Q8_0": _q8_0,
}  # fmt: skip
DEQUANTIZABLE = tuple(_DEQUANTIZE)
