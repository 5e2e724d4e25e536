"""The default model against a plain float32 forward pass of the same file, in every kernel variant of this CPU.

Keeps the reference's log-probabilities of the fixed text in memory (0.3 GB): they are most of this file's time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tailrace import _native
from tailrace.text.tokenizer import Tokenizer
from tests.model.conftest import Load
from tests.model.numbers import (
    F32,
    Difference,
    Ids,
    difference,
    evaluation_ids,
    native_log_probs,
    native_logits,
    together,
    windows,
)
from tests.reference.compare import log_softmax
from tests.reference.llama import LlamaReference

WINDOWS = 3  # of the fixed text: 1,536 tokens, which say what all 2,815 do, within 0.0001 of divergence
FEW = 128  # tokens for the portable kernels, which take a long time
Measure = Callable[[str, str, str], Difference]


@pytest.fixture(scope="module")
def texts(smollm2: Tokenizer) -> list[Ids]:
    return windows(evaluation_ids(smollm2))[:WINDOWS]


@pytest.fixture(scope="module")
def expected(smollm2_path: Path, texts: list[Ids]) -> list[F32]:
    """Log-probabilities of every position in float32, the weights through the `gguf` package's dequantizer."""
    model = LlamaReference(smollm2_path)
    return [log_softmax(model.logits(ids.tolist())) for ids in texts]


@pytest.fixture(scope="module")
def measure(load: Load, texts: list[Ids], expected: list[F32]) -> Measure:
    @cache
    def measured(weights: str, isa: str, kv: str) -> Difference:
        ids, wanted = (texts[:1], expected[:1]) if kv == "bf16" else (texts, expected)
        if isa == "portable":
            ids, wanted = [texts[0][:FEW]], [expected[0][:FEW]]
        loaded = load(weights, isa)
        parts = [difference([a], [native_log_probs(loaded, b, kv)], [b]) for a, b in zip(wanted, ids, strict=True)]
        found = together(parts)
        print(f"{weights} on {isa}, KV {kv}, {found}")
        return found

    return measured


@pytest.mark.parametrize("isa", _native.variants())
@pytest.mark.parametrize("kv", ["auto", "bf16"])
def test_the_default_is_near_float32(measure: Measure, isa: str, kv: str) -> None:
    """Its cache is int8. Measured: 0.0075, with a bf16 cache 0.0066 on the first window."""
    found = measure("auto", isa, kv)
    assert found.kl.mean() <= 0.01
    assert found.top1.mean() >= (0.9 if isa == "portable" else 0.93), "of few tokens one near tie is 0.8 %"
    assert np.quantile(found.kl, 0.99) < 0.08, "no position is far off"


@pytest.mark.parametrize("isa", _native.variants())
def test_bf16_weights_are_nearer(measure: Measure, isa: str) -> None:
    found = measure("bf16", isa, "auto")
    assert found.kl.mean() <= 0.001
    assert found.top1.mean() >= 0.98


@pytest.mark.parametrize("isa", [isa for isa in _native.variants() if isa != "portable"] or ["portable"])
@pytest.mark.parametrize("weights", ["auto", "bf16"])
def test_perplexity_changes_by_one_percent_at_most(measure: Measure, weights: str, isa: str) -> None:
    found = measure(weights, isa, "auto")
    assert 14 < np.exp(found.reference_loss.mean()) < 16, "the reference reads the text as it should"
    assert abs(found.perplexity_change) <= 0.01, str(found)


@pytest.mark.parametrize("isa", _native.variants())
def test_int8_storage_has_the_bits_of_the_default(load: Load, texts: list[Ids], isa: str) -> None:
    ids = texts[1][: 32 if isa == "portable" else 300]
    default, int8 = load("auto", isa), load("int8", isa)
    np.testing.assert_array_equal(native_logits(default, ids), native_logits(int8, ids))
