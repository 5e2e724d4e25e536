"""The calibration pass against the reference forward pass, and the choice it makes."""

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from tailrace.engine.models.registry import describe
from tailrace.engine.weights.calibrate import calibrate, channel_peaks, choose_wide, wide_count
from tailrace.engine.weights.gguf import GgufFile
from tailrace.engine.weights.source import WeightSource
from tests.architectures import REFERENCES, write_tiny
from tests.reference.canonical import PeakRecorder
from tests.reference.llama import LlamaReference
from tests.tiny import write_tiny_gguf


class Source:
    """The reference model's weights under the calibration's names, q and k rows in half-split order."""

    def __init__(self, model):
        self.model = model
        self.asked = []

    def __call__(self, name):
        self.asked.append(name)
        kind, _, layer = name.partition(".")
        if kind == "final_norm":
            return self.model.norms["final"]
        if kind in ("attn_norm", "ffn_norm"):
            return self.model.norms[f"{kind.removesuffix('_norm')}.{layer}"]
        if kind in ("o", "down"):
            return self.model.linears[name]
        if kind in ("gate", "up"):
            return np.split(self.model.linears[f"gate_up.{layer}"], 2)[["gate", "up"].index(kind)]
        rows, kv_rows = self.model.heads * self.model.head_dim, self.model.kv_heads * self.model.head_dim
        parts = np.split(self.model.linears[f"qkv.{layer}"], [rows, rows + kv_rows])
        part = parts["qkv".index(kind)]
        return part if kind == "v" else half_split(part, self.model.head_dim)


def half_split(w, head_dim):
    """Rows of each head from interleaved pairs (0, 1), (2, 3), ... to pairs (i, i + head_dim / 2)."""
    return w.reshape(-1, head_dim // 2, 2, w.shape[1]).transpose(0, 2, 1, 3).reshape(w.shape)


def tables(model, tokens):
    frequency = model.rope_base ** (-np.arange(0, model.head_dim, 2) / model.head_dim)
    angle = np.arange(tokens)[:, None] * frequency
    return [(np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32))]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("calibrate") / "tiny.gguf"
    return write_tiny_gguf(path, layers=3, hidden=128, heads=4, kv_heads=2, ffn=192)


@pytest.fixture(scope="module")
def model(path):
    return LlamaReference(path)


@pytest.fixture(scope="module")
def spec(path):
    return describe(GgufFile(path))


IDS = [(7 * i * i + 3 * i) % 250 for i in range(40)]


def test_peaks_are_those_of_the_reference_forward_pass(model, spec):
    recorder = PeakRecorder()
    model.logits(IDS, recorder)
    peaks = channel_peaks(spec, model.embedding[IDS], tables(model, 64), Source(model))
    assert peaks.keys() == recorder.peaks.keys()
    for name, peak in peaks.items():
        np.testing.assert_allclose(peak, recorder.peaks[name], rtol=2e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "gemma3"])
def test_other_architectures_match_their_references(architecture, tmp_path):
    caps = {"gemma3.attention.sliding_window": 9, "gemma3.attn_logit_softcapping": 4.0}
    path = write_tiny(architecture, tmp_path / "tiny.gguf", extra=caps if architecture == "gemma3" else {})
    file, recorder = GgufFile(path), PeakRecorder()
    reference, source = REFERENCES[architecture](path), WeightSource(file, describe(file))
    reference.logits(IDS, recorder)
    embedded = reference.embedding[IDS] * np.float32(source.spec.embedding_scale)
    peaks = channel_peaks(source.spec, embedded, source.rope_tables(40), source.calibration_weight)
    assert peaks.keys() == recorder.peaks.keys()
    for name, peak in peaks.items():
        np.testing.assert_allclose(peak, recorder.peaks[name], rtol=5e-4, atol=1e-5, err_msg=name)


def test_every_weight_is_asked_for_once_in_layer_order(model, spec):
    source = Source(model)
    calibrate(spec, model.embedding[IDS], tables(model, 40), source)
    layers = [int(name.partition(".")[2]) for name in source.asked[:-1]]
    assert layers == sorted(layers)
    assert len(source.asked) == len(set(source.asked)) == 9 * spec.layers + 1
    assert source.asked[-1] == "final_norm"


def test_every_linear_gets_its_wide_channels(model, spec):
    wide = calibrate(spec, model.embedding[IDS], tables(model, 40), Source(model))
    kinds = ("qkv", "o", "gate_up", "down")
    assert set(wide) == {f"{kind}.{layer}" for kind in kinds for layer in range(3)} | {"head"}
    assert {name: channels.size for name, channels in wide.items() if name.endswith(".0")} == {
        "qkv.0": wide_count(128),
        "o.0": wide_count(128),
        "gate_up.0": wide_count(128),
        "down.0": wide_count(192),
    }


def test_the_largest_channels_are_chosen_in_ascending_order():
    peak = np.random.default_rng(0).uniform(0, 1, 576).astype(np.float32)
    loud = np.random.default_rng(1).permutation(576)[:60]
    peak[loud] += 5
    wide = choose_wide(peak)
    assert wide.dtype == np.int32
    assert wide.size == wide_count(576)
    assert np.all(np.diff(wide) > 0)
    assert set(loud) <= set(wide.tolist())
    assert peak[wide].min() * 1.01 > np.delete(peak, wide).max()  # to three digits


def test_rounding_errors_do_not_decide():
    rng = np.random.default_rng(2)
    peak = np.round(rng.uniform(1, 1000, 576)).astype(np.float32)  # three digits, many of them equal
    wide = choose_wide(peak)
    for _ in range(20):
        noisy = peak * rng.uniform(1 - 1e-5, 1 + 1e-5, 576).astype(np.float32)
        assert choose_wide(noisy).tolist() == wide.tolist()


@pytest.mark.parametrize("value", [0.0, 1.0, 3.5e-38, 3e38])
def test_of_equal_channels_the_lowest_are_chosen(value):
    assert choose_wide(np.full(128, value, np.float32)).tolist() == list(range(64))


def test_magnitudes_count_to_three_digits_whatever_their_scale():
    peak = np.full(128, 1.003e-7, np.float32)
    peak[100], peak[101] = 1.004e-7, 1.01e-7  # the first is equal to the rest, the second larger
    assert choose_wide(peak).tolist() == [*range(63), 101]


def test_the_number_of_threads_changes_no_choice(model, spec):
    arguments = (spec, model.embedding[IDS], tables(model, 40))
    alone = calibrate(*arguments, Source(model))
    for threads in (2, 3, 200):  # the last: more than some matrices have rows
        found = calibrate(*arguments, Source(model), threads=threads)
        assert {name: wide.tolist() for name, wide in found.items()} == {n: w.tolist() for n, w in alone.items()}


def test_blas_starts_no_threads_of_its_own(model, spec):
    """Its threads spin while they wait; the limit holds while weights are asked for and is lifted behind."""
    before, during = [], []

    def limits():
        return [found["num_threads"] for found in threadpool_info() if found["user_api"] == "blas"]

    class Watched(Source):
        def __call__(self, name):
            during.extend(limits())
            return super().__call__(name)

    before = limits()
    calibrate(spec, model.embedding[IDS], tables(model, 40), Watched(model))
    assert set(during) <= {1}
    assert limits() == before


def test_one_channel_in_eight_is_wide_in_whole_blocks():
    counts = {channels: wide_count(channels) for channels in (32, 64, 576, 1024, 1536, 2048, 4096)}
    assert counts == {32: 0, 64: 64, 576: 64, 1024: 128, 1536: 192, 2048: 256, 4096: 448}


@pytest.mark.parametrize("channels", [32, 64, 96, 128, 192, 576, 1536, 2048, 4096, 14336, 28672])
def test_counts_are_whole_blocks_and_never_overflow_the_accumulator(channels):
    count = wide_count(channels)
    assert count % 64 == 0
    assert 0 <= count <= channels
    assert (channels - count) * 127 * 127 + count * 127 * 32512 < 2**31
    assert choose_wide(np.arange(channels, dtype=np.float32)).size == count
