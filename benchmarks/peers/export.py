"""A GGUF file of the llama architecture as a model folder in bfloat16, for engines that do not read GGUF.

    python -m benchmarks.peers.export MODEL.gguf FOLDER

The weights are the dequantized ones of the file, so that every engine computes with the same numbers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.numpy import save_file

F32 = npt.NDArray[np.float32]
NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}  # fmt: skip
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def _field(reader: GGUFReader, name: str) -> Any:
    return reader.fields[f"llama.{name}"].contents()


def _in_halves(weight: F32, heads: int) -> F32:
    """Rotary pairs side by side, as GGUF has them, become the two halves of a head."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _bf16(weight: F32) -> npt.NDArray[np.uint16]:
    bits = np.ascontiguousarray(weight, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _name(tensor: str) -> str:
    parts = tensor.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{NAMES[parts[2]]}.weight"
    return f"{OUTSIDE[parts[0]]}.weight"


def export(model: Path, folder: Path) -> None:
    """Write config.json and model.safetensors."""
    reader = GGUFReader(model)
    heads, kv_heads = _field(reader, "attention.head_count"), _field(reader, "attention.head_count_kv")
    tensors: dict[str, Any] = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        kind = tensor.name.split(".")[-2]
        if kind in ("attn_q", "attn_k"):
            weight = _in_halves(weight, heads if kind == "attn_q" else kv_heads)
        tensors[_name(tensor.name)] = _bf16(weight)
    folder.mkdir(parents=True, exist_ok=True)
    _save(tensors, folder / "model.safetensors")
    vocabulary, hidden = tensors["model.embed_tokens.weight"].shape
    settings = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocabulary, "hidden_size": hidden,
        "intermediate_size": _field(reader, "feed_forward_length"), "num_hidden_layers": _field(reader, "block_count"),
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "hidden_act": "silu", "dtype": "bfloat16",
        "max_position_embeddings": _field(reader, "context_length"), "torch_dtype": "bfloat16",
        "rms_norm_eps": _field(reader, "attention.layer_norm_rms_epsilon"),
        "rope_theta": _field(reader, "rope.freq_base"), "tie_word_embeddings": "lm_head.weight" not in tensors,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _save(tensors: dict[str, Any], path: Path) -> None:
    """`safetensors` knows no bfloat16 of NumPy: written as 16-bit integers, then named what they are."""
    save_file(tensors, path)
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].replace(b'"dtype":"U16"', b'"dtype":"BF16"')
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header + data[8 + length :])


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path(sys.argv[2]))
