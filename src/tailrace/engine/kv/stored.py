"""What the KV cache stores: bf16 numbers, or int8 with a step for each token and KV head.

Owns what `auto` means and what a token takes; docs/decisions/004-kv-int8.md has the figures behind it.
"""

from __future__ import annotations

from typing import Literal

from tailrace.engine.models.base import ModelSpec

Kv = Literal["bf16", "int8"]


def stored_kv(asked: str, spec: ModelSpec, weights: str) -> Kv:
    """`asked` auto, bf16 or int8; `weights` as LoadedModel stores them.

    auto is bf16 where int8 would not be as accurate as the rest: beside bf16 weights, which are chosen to be near
    float32, and for keys with a bias, whose few large channels set the step of all others.
    """
    if asked != "auto":
        return "bf16" if asked == "bf16" else "int8"
    biased = any(block.k_bias is not None for block in spec.blocks)
    return "bf16" if weights == "bf16" or biased else "int8"


def kv_token_bytes(spec: ModelSpec, kv: Kv, ranks: int = 1) -> int:
    """Memory of one token over all layers. More ranks than KV heads keep one each, if they have a query head."""
    vector = 2 * spec.head_dim if kv == "bf16" else spec.head_dim + 4
    return 2 * spec.kv_layers * max(spec.kv_heads, min(ranks, spec.heads)) * vector
