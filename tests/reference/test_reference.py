"""The reference itself: its integers, its bf16, and how near the default arithmetic is to float32 on a tiny model."""

import numpy as np
import pytest

from tests.reference.arithmetic import Bf16Arithmetic, IntegerArithmetic, quantize_activations, round_bf16
from tests.reference.canonical import canonical_linears, wide_channels
from tests.reference.compare import compare, log_softmax
from tests.reference.llama import LlamaReference
from tests.tiny import write_tiny_gguf


def test_activations_share_one_step_a_row():
    x = np.array([[127, -3.4, 2.5, 900.4], [0.5, 0, 0, 325120], [0, 0, 0, 0]], np.float32)
    q, step = quantize_activations(x, np.array([3], np.int32))
    assert step.tolist() == [1, 10, 0]
    assert q.tolist() == [[127, -3, 2, 900], [0, 0, 0, 32512], [0, 0, 0, 0]]


def test_bf16_is_the_high_half_rounded_to_even():
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0xBF80FFFF], np.uint32)
    assert round_bf16(bits.view(np.float32)).view(np.uint32).tolist() == [
        0x3F800000,
        0x3F820000,
        0x3F810000,
        0xBF810000,
    ]


def test_compare_measures_a_known_divergence():
    reference = np.log(np.array([[0.5, 0.5], [0.5, 0.5], [0.9, 0.1]], np.float32))
    other = np.log(np.array([[0.5, 0.5], [0.25, 0.75], [0.9, 0.1]], np.float32)) + np.float32(3)
    agreement = compare(reference, other, [0, 1, 0])
    assert agreement.mean_kl == pytest.approx(np.log(2 / np.sqrt(3)) / 3, abs=1e-6)
    assert agreement.top1 == pytest.approx(2 / 3)
    assert agreement.reference_perplexity == pytest.approx(2, abs=1e-6)
    assert agreement.perplexity == pytest.approx(np.sqrt(1 / (0.5 * 0.25)), abs=1e-5)
    assert np.exp(log_softmax(other)).sum(axis=1) == pytest.approx(1)


@pytest.mark.parametrize("wtype", ["q4_1", "q4_0", "q8_0", "f32"])
def test_both_engine_arithmetics_stay_near_float32(tmp_path, wtype):
    path = write_tiny_gguf(tmp_path / "tiny.gguf", wtype=wtype, hidden=128, heads=4, kv_heads=2, ffn=256)
    model = LlamaReference(path)
    ids = [(5 * i * i + i) % 280 for i in range(48)]
    exact = model.logits(ids)
    linears = canonical_linears(model, wide_channels(model, ids[:32]))
    assert all(linear.w8.shape == model.linears[name].shape for name, linear in linears.items())
    integers = compare(exact, model.logits(ids, IntegerArithmetic(linears)), ids)
    bf16 = compare(exact, model.logits(ids, Bf16Arithmetic()), ids)
    assert 0 < bf16.mean_kl < integers.mean_kl < 0.005
