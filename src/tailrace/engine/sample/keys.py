"""The keys of sampling noise. A token is a function of its row's logits, this key, its position and its id only."""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix64(value: int) -> int:
    """The splitmix64 finalizer (Steele, Lea and Flood, OOPSLA 2014): a bijection of 64-bit integers."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def sampling_key(seed: int, index: int) -> int:
    """The key of choice `index` of a request with this seed (any integer)."""
    return mix64((mix64((seed + _GOLDEN) & _MASK) + (index + 1) * _GOLDEN) & _MASK)
