"""The bits of a plain llama-shaped model, pinned: generality added to the executor must not move an old result.

Everything here derives from SHAKE-256, so the inputs are the same on any machine and with any NumPy. A deliberate
change of the arithmetic changes these digests; say so in docs/decisions and write the new ones down.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from tailrace import _native
from tests.native.tiny import Dims, Kv, Weights, native_model, run_chunked

DIMS = Dims(layers=2, hidden=128, heads=4, kv_heads=2, head_dim=32, ffn=192, vocab=91, max_positions=400)

AVX2 = {"int8": "4ecbc2f228052518", "nib4": "e53db8c3b805f76b", "bf16": "ae2ce7bdb25317e3"}
DIGESTS = {
    "avx2": AVX2,
    "avx512": AVX2,  # by design the same bits, floats too
    "avx512-emulated": AVX2,
    "portable": {"int8": "a8ec0ffd3350f75d", "nib4": "49b3910919684e98", "bf16": "0c452692ec8d3281"},
    "amx-emulated": {"int8": "5aee6e55aee1b8e9", "nib4": "31c7810ba36864c8", "bf16": "f01933103ea1c5a1"},
}

# With an int8 cache every product is of integers: one digest for all variants.
DIGESTS_KV8 = {"int8": "80e25c3df0845942", "nib4": "9d7e6aee15362579"}


def stream(name: str, *shape: int) -> Any:
    """int8 in -127..127, a function of the name."""
    found = np.frombuffer(hashlib.shake_256(name.encode()).digest(int(np.prod(shape))), np.int8)
    return np.maximum(found, -127).reshape(shape)


def positive(name: str, *shape: int) -> Any:
    """float32 in [0.5, 1.5), multiples of 1/256."""
    return (1 + stream(name, *shape).astype(np.float32) / 256).astype(np.float32)


def weights_of(fmt: str) -> Weights:
    weights = Weights(DIMS, {})
    for name, (n, k) in DIMS.shapes().items():
        weights.formats[name] = fmt
        weights.wide[name] = np.arange(1, 128, 2, dtype=np.int32)
        small = stream(name, n, k)
        if fmt == "bf16":
            weights.bits[name] = (small.astype(np.float32) / 1024).view(np.uint32).__rshift__(16).astype(np.uint16)
            continue
        weights.scale[name] = positive(f"scale {name}", n) / np.float32(1024)
        if fmt == "int8":
            weights.w8[name] = small
            continue
        a = stream(f"a {name}", n, k // 32).astype(np.int16) * 4
        b = stream(f"b {name}", n, k // 32).astype(np.int16) - 8 * a
        weights.nibbles[name] = ((small & 15).astype(np.uint8), a, b)
    for i in range(DIMS.layers):
        weights.norms |= {f"{kind}.{i}": positive(f"{kind} {i}", DIMS.hidden) for kind in ("attn", "ffn")}
    weights.norms["final"] = positive("final", DIMS.hidden)
    weights.embedding = stream("embedding", DIMS.vocab, DIMS.hidden).astype(np.float32) / np.float32(64)
    half = (DIMS.max_positions, DIMS.head_dim // 2)
    weights.cos, weights.sin = (stream(name, *half).astype(np.float32) / np.float32(128) for name in ("cos", "sin"))
    return weights


def digest(variant: str, fmt: str, kv: Kv = "bf16") -> str:
    tokens = (stream("tokens", 330).astype(int) % DIMS.vocab).tolist()
    logits = run_chunked(native_model(variant, weights_of(fmt), threads=2), tokens, 77, kv=kv)
    assert np.isfinite(logits).all() and logits.std() > 0.1
    return hashlib.sha256(logits.tobytes()).hexdigest()[:16]


@pytest.mark.parametrize("fmt", ["int8", "nib4", "bf16"])
@pytest.mark.parametrize("variant", [name for name in _native.test_variants() if name in DIGESTS])
def test_old_bits_stay(variant: str, fmt: str) -> None:
    assert digest(variant, fmt) == DIGESTS[variant][fmt]


@pytest.mark.parametrize("fmt", ["int8", "nib4"])
@pytest.mark.parametrize("variant", _native.test_variants())
def test_every_variant_has_the_same_bits_over_an_int8_cache(variant: str, fmt: str) -> None:
    assert digest(variant, fmt, "int8") == DIGESTS_KV8[fmt]
