"""What the declarations of qwen2, qwen3 and gemma3 read, and what they refuse."""

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
from tests.architectures import write_tiny


def spec_of(folder: Path, architecture: str, **arguments: Any) -> ModelSpec:
    return describe(GgufFile(write_tiny(architecture, folder / "tiny.gguf", **arguments)))


def test_qwen2_has_biases(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "qwen2")
    block = spec.blocks[1]
    assert (block.q_bias, block.k_bias, block.v_bias) == tuple(f"blk.1.attn_{part}.bias" for part in "qkv")
    assert (block.q_norm, block.attn_out_norm, block.window) == (None, None, 0)
    assert spec.tensor_shapes()["blk.0.attn_k.bias"] == (64,)
    assert spec.ropes == (Rope(theta=10000.0, dim=32),)
    assert (spec.activation, spec.embedding_scale, spec.attention_scale) == ("silu", 1.0, 0.0)


def test_qwen3_norms_heads_of_their_own_size(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "qwen3")
    assert (spec.hidden, spec.heads, spec.head_dim) == (128, 4, 64)
    assert (spec.blocks[0].q_norm, spec.blocks[0].k_norm) == ("blk.0.attn_q_norm.weight", "blk.0.attn_k_norm.weight")
    assert spec.blocks[0].q_bias is None
    assert not spec_of(tmp_path, "qwen3", tied=False).tied


def test_gemma3_alternates(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "gemma3", layers=13, extra={"gemma3.attention.sliding_window_pattern": 6})
    assert [block.window for block in spec.blocks] == [70] * 5 + [0] + [70] * 5 + [0] + [70]
    assert [block.rope for block in spec.blocks] == [1] * 5 + [0] + [1] * 5 + [0] + [1]
    assert (spec.activation, spec.embedding_scale, spec.attention_scale) == ("gelu", np.sqrt(128), 0.0)
    assert (spec.attention_softcap, spec.logit_softcap) == (0.0, 0.0)
    assert spec.blocks[0].ffn_out_norm == "blk.0.post_ffw_norm.weight"
    assert spec.tied


def test_gemma3_stretches_only_the_rope_of_full_layers(tmp_path: Path) -> None:
    extra = {
        "gemma3.rope.freq_base": 1e6,
        "gemma3.rope.scaling.type": "linear",
        "gemma3.rope.scaling.factor": 8.0,
        "gemma3.rope.freq_base_swa": 5000.0,
    }
    spec = spec_of(tmp_path, "gemma3", extra=extra)
    assert spec.ropes == (Rope(theta=1e6, dim=64, linear=8.0), Rope(theta=5000.0, dim=64))


def test_gemma3_reads_scale_and_caps(tmp_path: Path) -> None:
    extra = {
        "gemma3.attention.scale": 0.25,
        "gemma3.attn_logit_softcapping": 50.0,
        "gemma3.final_logit_softcapping": 30.0,
    }
    spec = spec_of(tmp_path, "gemma3", extra=extra)
    assert (spec.attention_scale, spec.attention_softcap, spec.logit_softcap) == (0.25, 50.0, 30.0)


def test_the_27b_divides_scores_by_another_root(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "gemma3", layers=62, hidden=64, heads=4, head_dim=32, ffn=64)
    assert spec.attention_scale == pytest.approx((64 / 4) ** -0.5)


REFUSED = {
    "no bias": ("llama", "qwen2", {}, "tensor 'blk.0.attn_q.bias' is missing; a qwen2 model has it."),
    "no head norm": ("llama", "qwen3", {}, "tensor 'blk.0.attn_q_norm.weight' is missing"),
    "no window": ("llama", "gemma3", {}, "metadata 'gemma3.attention.sliding_window' is None; a whole number"),
    "a norm too many": (
        "qwen2",
        "qwen2",
        dict(tensors={"blk.0.attn_q_norm.weight": np.ones(32, np.float32)}),
        "1 tensor(s) that a plain qwen2 model does not, such as 'blk.0.attn_q_norm.weight'",
    ),
    "a short norm": (
        "qwen3",
        "qwen3",
        dict(tensors={"blk.1.attn_k_norm.weight": np.ones(32, np.float32)}),
        "tensor 'blk.1.attn_k_norm.weight' has shape (32,); the metadata says (64,)",
    ),
    "experts": ("qwen3", "qwen3", dict(extra={"qwen3.expert_count": 4}), "mixture of 4 experts; only dense qwen3"),
    "cap": (
        "gemma3",
        "gemma3",
        dict(extra={"gemma3.final_logit_softcapping": -1.0}),
        "metadata 'gemma3.final_logit_softcapping' is -1.0; a number above 0 is needed",
    ),
    "longrope": (
        "qwen2",
        "qwen2",
        dict(extra={"qwen2.rope.scaling.type": "longrope"}),
        "rope scaling 'longrope' is not built; 'none', 'linear', 'yarn' and frequency factors are",
    ),
    "yarn without factor": (
        "qwen2",
        "qwen2",
        dict(extra={"qwen2.rope.scaling.type": "yarn"}),
        "metadata 'qwen2.rope.scaling.factor' is None",
    ),
    "yarn base": (
        "qwen2",
        "qwen2",
        dict(extra={"qwen2.rope.scaling.type": "yarn", "qwen2.rope.freq_base": 1.0}),
        "the rope base is 1.0; yarn needs one above 1",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_run_is_refused_by_name(tmp_path: Path, case: str) -> None:
    has, claims, arguments, said = REFUSED[case]
    path = write_tiny(has, tmp_path / "tiny.gguf", **arguments)
    if has != claims:
        path = claimed(path, has, claims, tmp_path)
    with pytest.raises(ModelFileError) as caught:
        describe(GgufFile(path))
    assert said in caught.value.message


def claimed(path: Path, has: str, claims: str, folder: Path) -> Path:
    """The tensors of one architecture under the name of another."""
    from tests.tiny import write_tiny_gguf

    return write_tiny_gguf(folder / "claimed.gguf", architecture=claims)
