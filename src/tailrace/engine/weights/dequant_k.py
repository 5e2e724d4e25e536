"""The formats with blocks of 256 values: two levels of scales, the inner ones of few bits.

Q2_K   16 scales and minima (4+4 bits) | 64 bytes of 2-bit numbers | d, dmin          groups of 16: d*s*q - dmin*m
Q3_K   32 bytes of third bits | 64 bytes of 2-bit numbers | 16 scales (6 bits) | d    groups of 16: d*(s-32)*(q-4)
Q4_K   d, dmin | 8 scales and minima (6 bits) | 128 bytes of 4-bit numbers            groups of 32: d*s*q - dmin*m
Q5_K   d, dmin | 8 scales and minima (6 bits) | 32 bytes of fifth bits | 128 of 4     groups of 32: d*s*q - dmin*m
Q6_K   128 bytes of 4-bit numbers | 64 of 2-bit ones above them | 16 int8 scales | d  groups of 16: d*s*(q-32)
IQ4_XS d | 8 scales (2 bits, then 4 bits) | 128 bytes of 4-bit numbers                groups of 32: d*(s-32)*table[q]
"""

from __future__ import annotations

import numpy as np

from tailrace.engine.weights.blocks import F32, I8, IQ4_VALUES, U8, as_blocks, fields, half, nibbles, scaled, signed


def affine4(raw: U8) -> tuple[U8, F32, F32]:
    """Q4_K as (q uint8 [N, K] in 0..15, d, m [N, K/32]) with value = d * q + m."""
    blocks = as_blocks(raw, 144)
    d, m = _scales_and_minima(blocks)
    return _pairs(blocks[..., 16:]).reshape(raw.shape[0], -1), d, m


def q2_k(raw: U8) -> F32:
    blocks = as_blocks(raw, 84)
    d, m = (
        _times(half(blocks, start), part) for start, part in ((80, blocks[..., :16] & 15), (82, blocks[..., :16] >> 4))
    )
    return scaled(_quarters(blocks[..., 16:80]).astype(np.float32), d, -m)


def q3_k(raw: U8) -> F32:
    blocks = as_blocks(raw, 110)
    low = _quarters(blocks[..., 32:96])
    third = fields(blocks[..., :32], tuple(range(8)), 1).reshape(low.shape)
    d = _times(half(blocks, 108), _sixteen_scales(blocks[..., 96:108]))
    return scaled(signed(low | (third << np.uint8(2)), 4), d)


def q4_k(raw: U8) -> F32:
    q, d, m = affine4(raw)
    return scaled(q.astype(np.float32), d, m)


def q5_k(raw: U8) -> F32:
    blocks = as_blocks(raw, 176)
    d, m = _scales_and_minima(blocks)
    q = _pairs(blocks[..., 48:])
    q |= fields(blocks[..., 16:48], tuple(range(8)), 1).reshape(q.shape) << 4
    return scaled(q.astype(np.float32).reshape(raw.shape[0], -1), d, m)


def q6_k(raw: U8) -> F32:
    blocks = as_blocks(raw, 210)
    q = fields(blocks[..., :128].reshape(*blocks.shape[:2], 2, 64), (0, 4), 15).reshape(raw.shape[0], -1)
    high = fields(blocks[..., 128:192].reshape(*blocks.shape[:2], 2, 32), (0, 2, 4, 6), 3)
    q |= high.reshape(q.shape) << 4
    return scaled(signed(q, 32), _times(half(blocks, 208), blocks[..., 192:208].view(np.int8)))


def iq4_xs(raw: U8) -> F32:
    blocks = as_blocks(raw, 136)
    low = fields(blocks[..., 4:8, None], (0, 4), 15).reshape(*blocks.shape[:2], 8)
    high = fields(blocks[..., 2:4, None], (0, 2, 4, 6), 3).reshape(low.shape)
    d = _times(half(blocks, 0), (low | high << 4).astype(np.int8) - np.int8(32))
    q = nibbles(blocks[..., 8:].reshape(raw.shape[0], -1, 16))
    return scaled(IQ4_VALUES[q], d)


def _times(d: F32, scales: U8 | I8) -> F32:
    """d [N, blocks] times the scales [N, blocks, s] of each block's groups: [N, blocks * s]."""
    product: F32 = d[..., None] * scales.astype(np.float32)
    return product.reshape(product.shape[0], -1)


def _pairs(packed: U8) -> U8:
    """128 bytes to 256 numbers: each 32 bytes hold a group in their low halves and the next in their high halves."""
    return fields(packed.reshape(*packed.shape[:2], 4, 32), (0, 4), 15)


def _quarters(packed: U8) -> U8:
    """64 bytes to 256 numbers [N, values]: each 32 bytes hold four times 32 numbers, lowest bits first."""
    numbers = fields(packed.reshape(*packed.shape[:2], 2, 32), (0, 2, 4, 6), 3)
    return numbers.reshape(packed.shape[0], -1)


def _scales_and_minima(blocks: U8) -> tuple[F32, F32]:
    """(d, m) [N, groups] of Q4_K and Q5_K with value = d * q + m.

    Twelve bytes hold eight scales and eight minima of 6 bits: four scales with two bits of a later scale above each,
    four minima likewise, and the other four bits of the later scales (low halves) and minima (high halves).
    """
    first, second, third = (blocks[..., start : start + 4] for start in (4, 8, 12))
    scales = np.concatenate([first & 63, third & 15 | (first >> 2) & 48], axis=-1)
    minima = np.concatenate([second & 63, third >> 4 | (second >> 2) & 48], axis=-1)
    return _times(half(blocks, 0), scales), -_times(half(blocks, 2), minima)


def _sixteen_scales(packed: U8) -> I8:
    """Q3_K's scales [N, blocks, 16] in -32..31: eight bytes of low halves, four of two high bits each."""
    low = fields(packed[..., :8], (0, 4), 15).reshape(*packed.shape[:2], 16)
    high = fields(packed[..., 8:], (0, 2, 4, 6), 3).reshape(low.shape)
    return (low | high << 4).astype(np.int8) - np.int8(32)
