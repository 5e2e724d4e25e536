"""Sizes of key channels move to the query exactly, and the moved keys round better."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tailrace.engine.weights.even_keys import channel_factors, even_keys
from tests.native.tiny import Dims, native_model, random_weights, run_chunked

F = np.float32


def uneven(head_dim: int = 32, seed: int = 0) -> Any:
    return (np.exp2(np.random.default_rng(seed).uniform(-4, 4, head_dim))).astype(F)


@pytest.mark.parametrize(("head_dim", "rope_dim"), [(32, 32), (96, 64), (64, 0)])
def test_factors_are_powers_of_two_and_those_of_a_pair_equal(head_dim: int, rope_dim: int) -> None:
    weight = uneven(head_dim)
    factors = channel_factors(weight, rope_dim)
    half = rope_dim // 2
    assert (np.frexp(factors)[0] == 0.5).all()
    np.testing.assert_array_equal(factors[:half], factors[half:rope_dim])
    np.testing.assert_array_less(np.abs(np.log2(weight / factors))[rope_dim:], 2)
    assert np.log2(weight / factors).std() < np.log2(weight).std()


@pytest.mark.parametrize("weight", [np.zeros(32, F), np.full(32, np.nan, F), np.full(32, 3, F)])
def test_nothing_to_even_out(weight: Any) -> None:
    np.testing.assert_array_equal(channel_factors(weight, 32), np.ones(32, F))


def test_channels_that_are_off_stay_within_bounds() -> None:
    weight = np.ones(64, F)
    weight[[0, 32]] = 0
    assert channel_factors(weight, 64).min() == 2.0**-7


def test_bf16_caches_keep_their_bits_and_int8_ones_lose_less() -> None:
    dims = Dims(head_norms=True)
    weights = random_weights(dims, "bf16")
    for layer in range(dims.layers):
        weights.norms[f"k.{layer}"] = uneven(seed=layer)
    spec: Any = SimpleNamespace(
        blocks=[SimpleNamespace(rope=0)] * dims.layers, ropes=[SimpleNamespace(dim=dims.head_dim)]
    )
    evened = replace(weights, norms=even_keys(weights.norms, spec))
    assert evened.norms["attn.0"] is weights.norms["attn.0"]
    tokens = np.random.default_rng(1).integers(0, dims.vocab, 200).tolist()
    old, new = native_model("portable", weights), native_model("portable", evened)
    exact = run_chunked(old, tokens, 200)
    np.testing.assert_array_equal(run_chunked(new, tokens, 200), exact)
    lost = [np.square(run_chunked(model, tokens, 200, kv="int8") - exact).mean() for model in (old, new)]
    assert lost[1] < 0.7 * lost[0]
