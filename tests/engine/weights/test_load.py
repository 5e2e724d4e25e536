"""A loaded model computes what a plain float32 forward pass of the same file computes, however it was stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tailrace import _native
from tailrace.engine.models.registry import describe
from tailrace.engine.weights.gguf import GgufFile
from tailrace.engine.weights.load import LoadedModel, load_model
from tailrace.engine.weights.pack import STORED_EMBEDDINGS, pack_weights
from tailrace.engine.weights.packed_cache import PackedCache
from tailrace.engine.weights.source import WeightSource
from tailrace.errors import ConfigError, ModelFileError
from tests.reference.arithmetic import round_bf16
from tests.reference.canonical import engine_integers
from tests.reference.compare import compare
from tests.reference.llama import LlamaReference
from tests.tiny import tiny_vocab_size, write_tiny_gguf

F32 = npt.NDArray[np.float32]
IDS = np.random.default_rng(3).integers(3, tiny_vocab_size(), 90).astype(np.int32)


def load(path: Path, **options: Any) -> LoadedModel:
    return load_model(path, threads=1, **options)


def logits(loaded: LoadedModel, ids: npt.NDArray[np.int32] = IDS) -> F32:
    """[T, vocab] of one sequence from position 0."""
    blocks = -(-len(ids) // _native.BLOCK_TOKENS)
    kv = _native.KvCache(loaded.model, blocks)
    ends = np.array([0, len(ids)], np.int32)
    table = np.arange(blocks, dtype=np.int32)[None]
    every = np.arange(len(ids), dtype=np.int32)
    loaded.model.forward(kv, ids, ends, np.zeros(1, np.int32), table, every)
    return loaded.model.logits()


def check(path: Path, bound: float = 3e-4, **options: Any) -> None:
    """The engine's integers are met closely; float32 as closely as 8 bits reach with random weights (0.003)."""
    found, ids, model = logits(load(path, **options)), IDS.tolist(), LlamaReference(path)
    assert compare(model.logits(ids), found, ids).mean_kl < 0.006
    if GgufFile(path).tensors["token_embd.weight"].type.name not in STORED_EMBEDDINGS:
        model.embedding = round_bf16(model.embedding)  # the executor has no lookup in these
    expected = model.logits(ids, engine_integers(path))
    assert compare(expected, found, ids).mean_kl < bound
    # Position 0 attends to itself alone, so only linears count there, and they are exact everywhere.
    np.testing.assert_allclose(found[0], expected[0], atol=1e-5)


@pytest.mark.parametrize("wtype", ["q4_1", "q4_0", "q8_0", "f16", "bf16", "f32"])
def test_every_type_is_close_to_the_reference(tmp_path: Path, wtype: str) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", wtype=wtype, hidden=192, heads=6, kv_heads=2, ffn=256)
    check(path, isa="portable")
    found = logits(load(path, weights="bf16"))
    assert compare(LlamaReference(path).logits(IDS.tolist()), found, IDS.tolist()).mean_kl < 0.0005


@pytest.mark.parametrize(
    "wtype", ["q5_0", "q5_1", "iq4_nl", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs"]
)  # fmt: skip
def test_types_that_are_only_read_are_close_to_the_reference(tmp_path: Path, wtype: str) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", wtype=wtype, hidden=256, heads=4, kv_heads=2, ffn=256)
    check(path, isa="portable")


def test_only_affine_four_bit_types_keep_their_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As files mix them: Q4_K with Q6_K where it matters."""
    monkeypatch.setattr(_native, "preferred_format", lambda variant, source: "nib4")
    types = {"blk.0.ffn_down.weight": "q6_k", "blk.1.attn_v.weight": "q6_k"}
    path = write_tiny_gguf(
        tmp_path / "tiny.gguf", wtype="q4_k", embedding_type="q6_k", hidden=256, heads=4, ffn=256, types=types
    )
    check(path, isa="portable")
    file = GgufFile(path)
    formats = pack_weights(WeightSource(file, describe(file)), "nib4", "portable", lambda *_: None).facts["formats"]
    int8 = {"down.0", "qkv.1", "head"}
    assert {name for name, fmt in formats.items() if fmt == "int8"} == int8
    assert {name for name, fmt in formats.items() if fmt == "nib4"} == set(formats) - int8


@pytest.mark.parametrize(
    "arguments",
    [
        dict(tied=False),
        dict(embedding_type="q4_1"),
        dict(embedding_type="f16"),
        dict(embedding_type="bf16"),
        dict(embedding_type="f32"),
        dict(tied=False, embedding_type="q4_0"),
        dict(types={"blk.0.attn_v.weight": "q8_0", "blk.1.ffn_up.weight": "q4_0", "blk.1.attn_k.weight": "f16"}),
        dict(extra={"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 1.0}),
        dict(tensors={"rope_freqs.weight": np.linspace(1, 8, 16, dtype=np.float32)}),
        dict(vocab=333),
    ],
    ids=["untied", "e4_1", "ef16", "ebf16", "ef32", "untied4", "mixed", "linear", "factors", "vocab"],
)  # fmt: skip
def test_variations_are_close_to_the_reference(tmp_path: Path, arguments: dict[str, Any]) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", hidden=192, heads=6, kv_heads=2, ffn=256, **arguments)
    check(path, isa="portable")


@pytest.mark.parametrize("isa", _native.test_variants())
def test_every_variant_is_close_to_the_reference(tmp_path: Path, isa: str) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", hidden=192, heads=6, kv_heads=2, ffn=256)
    for weights in ("auto", "int8"):
        check(path, bound=0.003, isa=isa, weights=weights)  # tile kernels round queries to bf16


def test_rows_that_rope_turns_end_up_in_the_right_place(tmp_path: Path) -> None:
    """A wrong reordering of Q and K shows here: all layers but rope's input are far less sensitive to it."""
    path = write_tiny_gguf(tmp_path / "tiny.gguf", wtype="f32", hidden=192, heads=6, kv_heads=2)
    file = GgufFile(path)
    source = WeightSource(file, describe(file))
    qkv = source.floats(source.linears()[0])
    stored = source.matrix("blk.0.attn_q.weight")
    np.testing.assert_array_equal(qkv[32:48], stored[32:64:2])
    np.testing.assert_array_equal(qkv[48:64], stored[33:64:2])
    np.testing.assert_array_equal(qkv[256:320], source.matrix("blk.0.attn_v.weight"))


def test_gate_and_up_rows_alternate_in_sixteens(tmp_path: Path) -> None:
    file = GgufFile(write_tiny_gguf(tmp_path / "tiny.gguf", wtype="f32"))
    source = WeightSource(file, describe(file))
    rows = source.floats(source.linears()[2])
    gate, up = source.matrix("blk.0.ffn_gate.weight"), source.matrix("blk.0.ffn_up.weight")
    for start in range(0, 128, 16):
        np.testing.assert_array_equal(rows[2 * start : 2 * start + 16], gate[start : start + 16])
        np.testing.assert_array_equal(rows[2 * start + 16 : 2 * start + 32], up[start : start + 16])


@pytest.mark.parametrize("wtype", ["q4_1", "q4_0", "q4_k"])
@pytest.mark.parametrize("isa", _native.test_variants())
def test_storage_never_changes_a_result(tmp_path: Path, wtype: str, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = dict(hidden=256, heads=8, ffn=256) if wtype == "q4_k" else dict(hidden=192, heads=6)
    path = write_tiny_gguf(tmp_path / "tiny.gguf", wtype=wtype, kv_heads=2, **sizes)
    monkeypatch.setattr(_native, "preferred_format", lambda variant, source: "nib4")
    nib4, int8 = load(path, isa=isa), load(path, isa=isa, weights="int8")
    assert (nib4.weights, int8.weights) == ("nib4", "int8")
    assert nib4.bytes_by_format["nib4"] > 0 and "nib4" not in int8.bytes_by_format
    np.testing.assert_array_equal(logits(nib4), logits(int8))


@pytest.mark.parametrize("embedding_type", ["q8_0", "q4_1"])
@pytest.mark.parametrize("weights", ["auto", "bf16"])
def test_cold_warm_and_uncached_loads_are_the_same_model(tmp_path: Path, weights: str, embedding_type: str) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", embedding_type=embedding_type)
    stages: list[tuple[str, float]] = []
    cold = load(path, weights=weights, cache_dir=tmp_path, progress=lambda *step: stages.append(step))
    warm = load(path, weights=weights, cache_dir=tmp_path)
    uncached = load(path, weights=weights)
    assert (cold.from_cache, warm.from_cache, uncached.from_cache) == (False, True, False)
    np.testing.assert_array_equal(logits(cold), logits(warm))
    np.testing.assert_array_equal(logits(cold), logits(uncached))
    assert cold.bytes_by_format == warm.bytes_by_format
    assert cold.file_sha256 == warm.file_sha256 == uncached.file_sha256
    assert stages[-1] == ("packing weights", 1.0)
    assert all(0 <= fraction <= 1 for _, fraction in stages)


def test_a_changed_file_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", seed=1)
    first = logits(load(path, cache_dir=tmp_path))
    write_tiny_gguf(path, seed=2)
    changed = load(path, cache_dir=tmp_path)
    assert not changed.from_cache
    assert not np.array_equal(logits(changed), first)


def test_a_damaged_cache_is_made_again(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    expected = logits(load(path, cache_dir=tmp_path))
    (packed,) = (tmp_path / "packed").iterdir()
    content = bytearray(packed.read_bytes())
    content[len(content) // 2] ^= 0x10
    packed.write_bytes(content)
    again = load(path, cache_dir=tmp_path)
    assert not again.from_cache
    np.testing.assert_array_equal(logits(again), expected)
    assert load(path, cache_dir=tmp_path).from_cache


def test_each_storage_has_its_own_cache(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    for weights in ("int8", "bf16"):
        load(path, weights=weights, cache_dir=tmp_path)
    assert len(list(PackedCache(tmp_path / "packed").folder.iterdir())) == 2


def test_what_is_known_about_the_model(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", context=256)
    loaded = load_model(path, threads=2, max_context=100)
    assert loaded.team.threads == 2
    assert (loaded.max_context, loaded.native_spec["max_positions"], loaded.spec.context) == (100, 100, 256)
    assert loaded.metadata["tokenizer.ggml.tokens"][:3] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert loaded.variant == _native.variants()[0]
    assert load(path).max_context == 256
    assert loaded.bytes_by_format["embedding q8_0"] == tiny_vocab_size() * 64 * 34 // 32


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(isa="sse9"), r"isa 'sse9' does not run on this CPU; available: auto, .*portable"),
        (dict(weights="q2"), "weights 'q2' is unknown; it is one of auto, int8, bf16"),
        (dict(max_context=5000), "max_context 5000 is beyond the model's 2048 tokens; use 0 to 2048"),
        (dict(max_context=-1), "max_context -1 is beyond"),
        (dict(threads=-1), "threads is -1; use 0"),
    ],
)
def test_options_that_cannot_be_served(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(ConfigError, match=said):
        load_model(path, **options)


@pytest.mark.parametrize("weights", ["auto", "bf16"])
@pytest.mark.parametrize(
    "name", ["blk.1.ffn_up.weight", "blk.0.attn_norm.weight", "token_embd.weight", "output.weight"]
)
def test_weights_that_are_no_numbers_are_refused(tmp_path: Path, name: str, weights: str) -> None:
    shapes = {"blk.1.ffn_up.weight": (128, 64), "blk.0.attn_norm.weight": (64,)}
    bad = np.full(shapes.get(name, (tiny_vocab_size(), 64)), 0.1, np.float32)
    bad[7] = np.nan
    path = write_tiny_gguf(tmp_path / "tiny.gguf", wtype="f32", tied=False, tensors={name: bad})
    with pytest.raises(ModelFileError, match=rf"{path}.*{name}.*NaN or infinity"):
        load(path, weights=weights)
