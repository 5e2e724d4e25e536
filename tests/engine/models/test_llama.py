"""The llama declaration: what is read from metadata, how rows are reordered, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailrace.engine.models.base import ModelSpec
from tailrace.engine.models.registry import describe
from tailrace.engine.models.rope import Rope
from tailrace.engine.weights.gguf import GgufFile
from tailrace.errors import ModelFileError
from tests.tiny import tiny_vocab_size, write_tiny_gguf


def spec_of(folder: Path, **arguments: Any) -> ModelSpec:
    return describe(GgufFile(write_tiny_gguf(folder / "tiny.gguf", **arguments)))


def refusal(folder: Path, **arguments: Any) -> str:
    with pytest.raises(ModelFileError) as caught:
        spec_of(folder, **arguments)
    return caught.value.message


def test_dimensions(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, layers=3, hidden=192, heads=6, kv_heads=2, ffn=256, context=512)
    assert (spec.layers, spec.hidden, spec.heads, spec.kv_heads, spec.head_dim, spec.ffn) == (3, 192, 6, 2, 32, 256)
    assert (spec.vocab, spec.context, spec.name, spec.architecture) == (tiny_vocab_size(), 512, "Tiny Test", "llama")
    assert spec.norm_eps == pytest.approx(1e-5)
    assert spec.ropes[0] == Rope(theta=10000.0, dim=32, interleaved=True)
    assert spec.blocks[2].down == "blk.2.ffn_down.weight"


def test_the_head_is_tied_when_the_file_has_none(tmp_path: Path) -> None:
    assert spec_of(tmp_path).tied
    untied = spec_of(tmp_path, tied=False)
    assert not untied.tied and untied.head == "output.weight"


def test_head_size_may_be_given(tmp_path: Path) -> None:
    extra = {"llama.attention.key_length": 64, "llama.attention.value_length": 64, "llama.rope.dimension_count": 64}
    rng = np.random.default_rng(0)
    wide = {f"blk.0.attn_{part}.weight": rng.standard_normal(shape).astype(np.float32)
            for part, shape in {"q": (128, 64), "k": (64, 64), "v": (64, 64), "output": (64, 128)}.items()}  # fmt: skip
    assert spec_of(tmp_path, layers=1, extra=extra, tensors=wide).head_dim == 64


def test_linear_scaling_divides_positions(tmp_path: Path) -> None:
    extra = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    rope = spec_of(tmp_path, extra=extra).ropes[0]
    cos, sin = rope.tables(9)
    plain_cos, plain_sin = Rope(theta=10000.0, dim=32).tables(3)
    np.testing.assert_allclose(cos[[0, 4, 8]], plain_cos, atol=1e-7)
    np.testing.assert_allclose(sin[[0, 4, 8]], plain_sin, atol=1e-7)


def test_frequency_factors_divide_frequencies(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 16, dtype=np.float32)
    spec = spec_of(tmp_path, tensors={"rope_freqs.weight": factors})
    assert spec.ropes[0].factors == "rope_freqs.weight"
    cos, sin = spec.ropes[0].tables(50, factors)
    angle = 49 * 10000.0 ** (-np.arange(16) / 16) / factors
    np.testing.assert_allclose(cos[49], np.cos(angle), atol=1e-6)
    np.testing.assert_allclose(sin[49], np.sin(angle), atol=1e-6)


@pytest.mark.parametrize("dim", [32, 24])
def test_reordered_rows_rotate_as_the_stored_ones_did(dim: int) -> None:
    """Rotating stored pairs (2i, 2i+1) and then reordering equals reordering and then rotating (i, i + dim/2)."""
    heads, head_dim, position = 3, 32, 5
    rope = Rope(theta=1000.0, dim=dim, interleaved=True)
    order = rope.row_order(heads, head_dim)
    stored = np.random.default_rng(1).standard_normal((heads, head_dim)).astype(np.float32)
    cos, sin = (table[position] for table in rope.tables(position + 1))

    rotated = stored.copy()
    even, odd = stored[:, 0:dim:2], stored[:, 1:dim:2]
    rotated[:, 0:dim:2], rotated[:, 1:dim:2] = even * cos - odd * sin, odd * cos + even * sin

    ours = stored.ravel()[order].reshape(heads, head_dim)
    first, second = ours[:, : dim // 2].copy(), ours[:, dim // 2 : dim].copy()
    ours[:, : dim // 2], ours[:, dim // 2 : dim] = first * cos - second * sin, second * cos + first * sin
    np.testing.assert_array_equal(ours.ravel(), rotated.ravel()[order])


def test_rows_stored_in_halves_stay() -> None:
    np.testing.assert_array_equal(Rope(theta=1000.0, dim=32).row_order(2, 32), np.arange(64))


def test_an_unknown_architecture_names_those_that_run(tmp_path: Path) -> None:
    assert "has architecture 'mamba'; those that run here are: bert, gemma3, llama, qwen2, qwen3." in refusal(
        tmp_path, architecture="mamba"
    )


def test_an_unreadable_tensor_type_names_tensor_and_types(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", hidden=256, heads=8, wtype="q8_0")
    iq3_s = path.read_bytes().replace(name_and_type("blk.1.attn_q.weight", 256, 256, 8),
                                     name_and_type("blk.1.attn_q.weight", 256, 256, 21))  # fmt: skip
    path.write_bytes(iq3_s)
    with pytest.raises(ModelFileError) as caught:
        describe(GgufFile(path))
    assert (
        "tensor 'blk.1.attn_q.weight' has type IQ3_S; readable types are F32, F16, BF16, Q4_0" in caught.value.message
    )


def name_and_type(name: str, inputs: int, outputs: int, kind: int) -> bytes:
    dims = (2).to_bytes(4, "little") + inputs.to_bytes(8, "little") + outputs.to_bytes(8, "little")
    return name.encode() + dims + kind.to_bytes(4, "little")


REFUSED = {
    "hidden": (dict(hidden=96, heads=3), "the hidden size is 96; the executor needs a multiple of 64"),
    "ffn": (dict(ffn=96), "the feed-forward size is 96; the executor needs a multiple of 64"),
    "head": (dict(heads=4), "the head size is 16; the executor needs a multiple of 32"),
    "sharing": (dict(hidden=192, heads=6, kv_heads=4), "6 query heads do not share 4 key heads evenly"),
    "context": (dict(context=1 << 30), "its context is 1073741824 tokens"),
    "rope": (dict(extra={"llama.rope.dimension_count": 48}), "rope covers 48 values; an even number up to 32"),
    "longrope": (dict(extra={"llama.rope.scaling.type": "longrope"}), "rope scaling 'longrope' is not built"),
    "experts": (dict(extra={"llama.expert_count": 8}), "a mixture of 8 experts"),
    "values": (dict(extra={"llama.attention.value_length": 64}), "value heads and key heads differ"),
    "layers": (dict(extra={"llama.block_count": 3}), "tensor 'blk.2.attn_norm.weight' is missing"),
    "many layers": (dict(extra={"llama.block_count": 9000}), "claims 9000 layers but has 20 tensors"),
    "kind": (dict(extra={"llama.block_count": 2.5}), "metadata 'llama.block_count' is 2.5; a whole number"),
    "zero": (dict(extra={"llama.attention.head_count_kv": 0}), "'llama.attention.head_count_kv' is 0; a whole number"),
    "epsilon": (
        dict(extra={"llama.attention.layer_norm_rms_epsilon": float("nan")}),
        "'llama.attention.layer_norm_rms_epsilon' is nan; a number above 0",
    ),
    "shape": (
        dict(tensors={"blk.1.ffn_up.weight": np.zeros((64, 64), np.float32)}),
        "tensor 'blk.1.ffn_up.weight' has shape (64, 64); the metadata says (128, 64)",
    ),
    "bias": (
        dict(tensors={"blk.0.attn_q.bias": np.zeros(64, np.float32)}),
        "1 tensor(s) that a plain llama model does not, such as 'blk.0.attn_q.bias'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_run_is_refused_by_name(tmp_path: Path, case: str) -> None:
    arguments, said = REFUSED[case]
    assert said in refusal(tmp_path, **arguments)
