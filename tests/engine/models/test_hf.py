"""Settings of the hub's model folders in GGUF's terms, and what is refused about them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tailrace.engine.models.hf import FAMILIES, FolderConfig
from tailrace.errors import ModelFileError

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
GEMMA = {
    "architectures": ["Gemma3ForCausalLM"],
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_hidden_layers": 18,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "sliding_window": 512,
    "query_pre_attn_scalar": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
    "final_logit_softcapping": None,
}


def config(values: dict[str, Any] = LLAMA, **changes: Any) -> FolderConfig:
    return FolderConfig({**values, **changes}, "folder/config.json")


def refusal(values: dict[str, Any] = LLAMA, **changes: Any) -> str:
    with pytest.raises(ModelFileError) as caught:
        found = config(values, **changes)
        found.metadata()
        found.rope_factors()
    assert caught.value.message.startswith("folder/config.json: ")
    return caught.value.message


def test_llama_in_ggufs_keys() -> None:
    assert config().metadata() == {
        "general.architecture": "llama",
        "llama.block_count": 30,
        "llama.context_length": 8192,
        "llama.embedding_length": 576,
        "llama.feed_forward_length": 1536,
        "llama.attention.head_count": 9,
        "llama.attention.head_count_kv": 3,
        "llama.attention.key_length": 64,
        "llama.attention.value_length": 64,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 100000.0,
        "llama.rope.dimension_count": 64,
    }


def test_gemma_in_ggufs_keys() -> None:
    found = config(GEMMA).metadata()
    assert found["gemma3.attention.key_length"] == 256
    assert found["gemma3.attention.sliding_window"] == 512
    assert found["gemma3.attention.sliding_window_pattern"] == 6
    assert (found["gemma3.rope.freq_base"], found["gemma3.rope.freq_base_swa"]) == (1e6, 1e4)
    assert found["gemma3.attention.scale"] == 1 / 16
    assert found["gemma3.context_length"] == 32768
    assert "gemma3.final_logit_softcapping" not in found
    assert config(GEMMA, final_logit_softcapping=30.0).metadata()["gemma3.final_logit_softcapping"] == 30


def test_names_of_tensors() -> None:
    llama, gemma = config(), config(GEMMA)
    assert llama.name_of("model.embed_tokens.weight") == "token_embd.weight"
    assert llama.name_of("model.layers.12.self_attn.q_proj.weight") == "blk.12.attn_q.weight"
    assert llama.name_of("model.layers.0.self_attn.k_proj.bias") == "blk.0.attn_k.bias"
    assert llama.name_of("model.layers.3.post_attention_layernorm.weight") == "blk.3.ffn_norm.weight"
    assert gemma.name_of("model.layers.3.post_attention_layernorm.weight") == "blk.3.post_attention_norm.weight"
    assert gemma.name_of("model.layers.3.pre_feedforward_layernorm.weight") == "blk.3.ffn_norm.weight"
    assert gemma.name_of("model.layers.3.self_attn.q_norm.weight") == "blk.3.attn_q_norm.weight"
    assert llama.name_of("model.layers.3.mlp.experts.0.weight") == "model.layers.3.mlp.experts.0.weight"
    assert llama.name_of("model.layers.03.mlp.up_proj.weight") == "model.layers.03.mlp.up_proj.weight"
    assert llama.name_of("model.layers.0.self_attn.rotary_emb.inv_freq") is None


def test_a_tied_head_is_not_read_twice() -> None:
    assert config().name_of("lm_head.weight") is None
    assert config(tie_word_embeddings=False).name_of("lm_head.weight") == "output.weight"
    without = {key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"}
    assert config(without).name_of("lm_head.weight") == "output.weight"
    assert config(GEMMA).name_of("lm_head.weight") is None


def test_norms_stored_less_one() -> None:
    assert config(GEMMA).is_from_one("blk.0.attn_q_norm.weight")
    assert not config(GEMMA).is_from_one("blk.0.attn_q.weight")
    assert not config().is_from_one("blk.0.attn_norm.weight")


def test_older_and_newer_ways_to_write_rope() -> None:
    older = config(rope_scaling={"type": "linear", "factor": 4.0}).metadata()
    without = {key: value for key, value in LLAMA.items() if key != "rope_theta"}
    newer = config(without, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 100000.0}).metadata()
    assert older == newer
    assert (older["llama.rope.scaling.type"], older["llama.rope.scaling.factor"]) == ("linear", 4.0)
    local = {"sliding_attention": {"rope_theta": 5000.0}, "full_attention": {"rope_theta": 2e6}}
    plain = {key: value for key, value in GEMMA.items() if key not in ("rope_theta", "rope_local_base_freq")}
    found = config(plain, rope_parameters=local).metadata()
    assert (found["gemma3.rope.freq_base"], found["gemma3.rope.freq_base_swa"]) == (2e6, 5000.0)


def test_yarn() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "beta_fast": 32.0}
    found = config(rope_scaling=scaling).metadata()
    assert {key: value for key, value in found.items() if "scaling" in key} == {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 32768,
        "llama.rope.scaling.yarn_beta_fast": 32.0,
    }


def test_llama3_factors_by_the_definition() -> None:
    """Waves shorter than 8192/4 positions stay, longer than 8192/1 are slowed by 8, between them it is blended."""
    factors = config(rope_theta=500000.0, head_dim=128, rope_scaling=LLAMA3).rope_factors()
    assert factors is not None and factors.shape == (64,) and factors.dtype == np.float32
    for i in range(64):
        wave = 2 * np.pi * 500000.0 ** (2 * i / 128)
        smooth = (8192 / wave - 1.0) / (4.0 - 1.0)
        expected = 1.0 if wave < 2048 else 8.0 if wave > 8192 else 1 / ((1 - smooth) / 8 + smooth)
        assert factors[i] == pytest.approx(expected, rel=1e-6)
    assert {1.0, 8.0} < set(factors.tolist())
    assert config().rope_factors() is None
    assert "llama.rope.scaling.type" not in config(rope_scaling=LLAMA3).metadata()


def test_a_window_over_every_layer_bounds_the_context() -> None:
    assert config(sliding_window=4096).metadata()["llama.context_length"] == 4096
    assert config(sliding_window=None).metadata()["llama.context_length"] == 8192
    assert config(sliding_window=4096, use_sliding_window=False).metadata()["llama.context_length"] == 8192


REFUSED = [
    (dict(architectures=["MambaForCausalLM"]), f"['MambaForCausalLM']; those that run here are {', '.join(FAMILIES)}"),
    (dict(architectures=None), "architectures is None"),
    (dict(architectures=["LlamaForCausalLM", "x"]), "architectures is ['LlamaForCausalLM', 'x']"),
    (dict(hidden_size=None), "hidden_size is None; a whole number above 0"),
    (dict(num_hidden_layers=True), "num_hidden_layers is True"),
    (dict(num_attention_heads=0), "num_attention_heads is 0"),
    (dict(num_key_value_heads="3"), "num_key_value_heads is '3'"),
    (dict(rms_norm_eps=10**400), "rms_norm_eps is 1000"),
    (dict(rope_theta=-1.0), "rope_theta is -1.0"),
    (dict(hidden_act="gelu"), "hidden_act is 'gelu'; 'silu' is what"),
    (dict(quantization_config={"quant_method": "gptq"}), "its weights are quantized ('gptq'); folders with F32, F16"),
    (dict(rope_scaling=[1]), "rope_scaling is [1]"),
    (dict(rope_scaling={"rope_type": 5}), "the rope type is 5"),
    (dict(rope_scaling={"type": "linear"}), "factor is None"),
    (dict(rope_scaling=LLAMA3 | {"high_freq_factor": 1.0}), "high_freq_factor 1 is not above low_freq_factor 1"),
    (dict(rope_scaling=LLAMA3, head_dim=1 << 30), "rope would cover 1.07374e+09 values"),
    (dict(rope_parameters=7), "rope_parameters is 7"),
]


@pytest.mark.parametrize(("changes", "said"), REFUSED, ids=[said[:30] for _, said in REFUSED])
def test_settings_that_cannot_be_run(changes: dict[str, Any], said: str) -> None:
    assert said in refusal(**changes)


def test_an_irregular_pattern_of_layers() -> None:
    kinds = ["sliding_attention", "full_attention", "full_attention", *["sliding_attention"] * 15]
    assert "layer_types is not a regular pattern" in refusal(GEMMA, layer_types=kinds)
    assert (
        config(GEMMA, layer_types=["sliding_attention"] * 3).metadata()["gemma3.attention.sliding_window_pattern"] == 4
    )
