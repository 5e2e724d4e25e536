"""The same numbers as a GGUF file and as a folder of the hub are the same model, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from tailrace.engine.weights.load import load_model
from tests.architectures import write_tiny
from tests.native.tiny import run_chunked
from tests.tiny_hf import write_tokenizer, write_weights

F32 = npt.NDArray[np.float32]
IDS = [(7 * i * i + 3 * i) % 250 for i in range(100)]

LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GEMMA = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "num_attention_heads": 6, "num_key_value_heads": 2,
              "hidden_size": 192, "hidden_act": "silu", "use_sliding_window": False, "sliding_window": 70},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "num_attention_heads": 4, "num_key_value_heads": 2,
              "hidden_size": 128, "head_dim": 64, "hidden_act": "silu", "attention_bias": False},
    "gemma3": {"architectures": ["Gemma3ForCausalLM"], "num_attention_heads": 4, "num_key_value_heads": 1,
               "hidden_size": 128, "head_dim": 64, "hidden_activation": "gelu_pytorch_tanh", "num_hidden_layers": 4,
               "sliding_window": 70, "sliding_window_pattern": 3, "query_pre_attn_scalar": 64,
               "rope_local_base_freq": 10000.0},
}  # fmt: skip
COMMON = {"num_hidden_layers": 2, "intermediate_size": 256, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
          "rope_theta": 10000.0}  # fmt: skip


def tensors_of(path: Path) -> dict[str, F32]:
    reader = gguf.GGUFReader(path)
    return {t.name: np.array(t.data, np.float32).reshape(t.shape[::-1].tolist()) for t in reader.tensors}


def hub_name(name: str, architecture: str) -> str:
    if name in OUTER:
        return OUTER[name]
    _, layer, part, kind = name.split(".")
    parts = LAYER | GEMMA if architecture == "gemma3" else LAYER
    return f"model.layers.{layer}.{parts[part]}.{kind}"


@pytest.mark.parametrize(
    ("architecture", "tied"),
    [("qwen2", True), ("qwen2", False), ("qwen3", True), ("qwen3", False), ("gemma3", True)],
)
def test_both_forms_give_the_same_bits(tmp_path: Path, architecture: str, tied: bool) -> None:
    plain = tensors_of(write_tiny(architecture, tmp_path / "plain.gguf", wtype="f32", tied=tied))
    # Gemma's folders have norms less 1: steps of 1/256 survive that exactly.
    norms = {name: np.rint(w * 256) / np.float32(256) for name, w in plain.items() if name.endswith("norm.weight")}
    path = write_tiny(architecture, tmp_path / "tiny.gguf", wtype="f32", tied=tied, tensors=norms)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(COMMON | CONFIGS[architecture] | {"tie_word_embeddings": tied}))
    stored = {
        hub_name(name, architecture): w - 1 if architecture == "gemma3" and name in norms else w
        for name, w in tensors_of(path).items()
    }
    write_weights(folder, stored, "f32", 1)
    write_tokenizer(folder)
    found, expected = (
        run_chunked(load_model(model, threads=1, max_context=128).model, IDS, len(IDS)) for model in (folder, path)
    )
    np.testing.assert_array_equal(found, expected)
