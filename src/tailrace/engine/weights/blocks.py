"""What the quantized formats have in common: blocks of bytes, float16 scales, numbers of few bits side by side."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
I8 = npt.NDArray[np.int8]
U8 = npt.NDArray[np.uint8]

GROUP = 32  # values in a block of the simple formats, and in a group of the 4- and 5-bit ones
# What the numbers 0..15 mean in the IQ4 formats: finer around zero.
IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
IQ4_VALUES.setflags(write=False)


def as_blocks(raw: U8, size: int) -> U8:
    """[rows, bytes] -> [rows, blocks, size]."""
    return raw.reshape(raw.shape[0], -1, size)


def half(blocks: U8, start: int) -> F32:
    """The float16 at byte `start` of each block, as float32 [N, blocks]."""
    return np.ascontiguousarray(blocks[..., start : start + 2]).view(np.float16)[..., 0].astype(np.float32)


def nibbles(packed: U8) -> U8:
    """[N, blocks, n] bytes to [N, blocks * 2n]: a block's low halves come first, then its high halves."""
    return fields(packed, (0, 4), 15).reshape(packed.shape[0], -1)


def fields(packed: U8, shifts: tuple[int, ...], mask: int) -> U8:
    """[..., n] bytes to [..., len(shifts), n]: (byte >> shift) & mask, the first shift's numbers first."""
    out = np.empty((*packed.shape[:-1], len(shifts), packed.shape[-1]), np.uint8)
    for index, shift in enumerate(shifts):
        part = out[..., index, :]
        np.right_shift(packed, shift, out=part)
        part &= mask
    return out


def signed(q: U8, offset: int) -> F32:
    """q - offset."""
    values = q.astype(np.float32)
    values -= np.float32(offset)
    return values


def scaled(values: F32, d: F32, m: F32 | None = None) -> F32:
    """values * d (+ m) in place, group by group; one d for each group along the row."""
    groups = values.reshape(*d.shape, -1)
    groups *= d[..., None]
    if m is not None:
        groups += m[..., None]
    return values
