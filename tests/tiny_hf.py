"""The tiny model of `tests.tiny` in other shapes: a GGUF file cut into parts, a folder as on the Hugging Face hub.

    folder = write_tiny_folder(tmp_path / "tiny", dtype="bf16", shards=2)
    first = split_tiny_gguf(tmp_path / "tiny.gguf", parts=3)

The folder has the same weights as the GGUF file of the same seed: stored in `dtype`, query and key rows in halves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.tiny import CHATML, IM_END, IM_START, SPECIAL_TOKENS, tiny_tokenizer, write_tiny_gguf

F32 = npt.NDArray[np.float32]

PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def split_tiny_gguf(path: Path, parts: int, *, claim: Mapping[int, Mapping[str, int]] | None = None) -> list[Path]:
    """Cut the file into `name-0000K-of-0000N.gguf` beside it, the first without tensors as converters like to do;
    `claim` replaces a part's split metadata. Returns the parts; the whole file is gone."""
    reader = gguf.GGUFReader(path)
    shares = [[], *(reader.tensors[k :: parts - 1] for k in range(parts - 1))]
    paths = []
    for number, share in enumerate(shares):
        part = path.with_name(f"{path.stem}-{number + 1:05}-of-{parts:05}.gguf")
        writer = GGUFWriter(part, "llama")
        if number == 0:
            _copy_metadata(reader, writer)
        split = {"split.no": number, "split.count": parts, "split.tensors.count": len(reader.tensors)}
        for key, value in (split | dict((claim or {}).get(number, {}))).items():
            writer.add_uint16(key, value)
        for tensor in share:
            writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        paths.append(part)
    path.unlink()
    return paths


def _copy_metadata(reader: gguf.GGUFReader, writer: GGUFWriter) -> None:
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=inner)


def write_tiny_folder(
    folder: Path,
    *,
    dtype: str = "f32",
    shards: int = 1,
    config: Mapping[str, Any] | None = None,
    **options: Any,
) -> Path:
    """Write the folder and return it. `config` replaces keys of config.json; `options` are `write_tiny_gguf`'s."""
    folder.mkdir(parents=True, exist_ok=True)
    source = write_tiny_gguf(folder / "source.gguf", wtype="f32", **options)
    tensors = folder_tensors(source)
    reader = gguf.GGUFReader(source)
    source.unlink()

    def value(key: str) -> Any:
        return reader.fields[f"llama.{key}"].contents()

    settings = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": value("embedding_length"),
        "intermediate_size": value("feed_forward_length"),
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": value("attention.head_count"),
        "num_key_value_heads": value("attention.head_count_kv"),
        "max_position_embeddings": value("context_length"),
        "rms_norm_eps": value("attention.layer_norm_rms_epsilon"),
        "rope_theta": value("rope.freq_base"),
        "hidden_act": "silu",
        "tie_word_embeddings": "lm_head.weight" not in tensors,
    }
    (folder / "config.json").write_text(json.dumps(settings | dict(config or {})))
    write_weights(folder, tensors, dtype, shards)
    write_tokenizer(folder)
    return folder


def folder_tensors(path: Path) -> dict[str, F32]:
    """The GGUF file's tensors under the hub's names, rows of q and k in halves."""
    reader = gguf.GGUFReader(path)
    sizes = {key: reader.fields[f"llama.attention.{key}"].contents() for key in ("head_count", "head_count_kv")}
    found = {}
    for tensor in reader.tensors:
        rows = np.array(tensor.data, np.float32).reshape(tensor.shape[::-1].tolist())
        if "attn_q." in tensor.name or "attn_k." in tensor.name:
            heads = sizes["head_count" if "attn_q." in tensor.name else "head_count_kv"]
            rows = rows.reshape(heads, -1, 2, rows.shape[1]).transpose(0, 2, 1, 3).reshape(rows.shape)
        found[hub_name(tensor.name)] = rows
    return found


def hub_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in OUTER:
        return f"{OUTER[stem]}.{kind}"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{PARTS[part]}.{kind}"


def write_weights(folder: Path, tensors: Mapping[str, F32], dtype: str = "f32", shards: int = 1) -> None:
    """model.safetensors, or several files and their index."""
    names = list(tensors)
    if shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors, dtype))
        return
    table = {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        share = {name: tensors[name] for name in names[number::shards]}
        (folder / file).write_bytes(safetensors_bytes(share, dtype))
        table |= dict.fromkeys(share, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": table}))


def safetensors_bytes(tensors: Mapping[str, F32], dtype: str) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        stored = stored_bytes(values, dtype)
        offsets = [len(data), len(data) + len(stored)]
        header[name] = {"dtype": dtype.upper(), "shape": list(values.shape), "data_offsets": offsets}
        data += stored
    return join_safetensors(json.dumps(header).encode(), data)


def join_safetensors(header: bytes, data: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def stored_bytes(values: F32, dtype: str) -> bytes:
    if dtype == "bf16":
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16).tobytes()
    return values.astype({"f32": np.float32, "f16": np.float16}[dtype]).tobytes()


def write_tokenizer(folder: Path) -> None:
    """tokenizer.json, tokenizer_config.json and generation_config.json of the tiny tokenizer."""
    tokens, merges = tiny_tokenizer()
    pairs = [tuple(merge.split(" ")) for merge in merges]
    library = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, pairs))
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(list(SPECIAL_TOKENS))
    library.save(str(folder / "tokenizer.json"))
    names = {"bos_token": SPECIAL_TOKENS[IM_START], "eos_token": SPECIAL_TOKENS[IM_END], "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": IM_START, "eos_token_id": IM_END}))
