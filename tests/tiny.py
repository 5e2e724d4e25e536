"""A tiny llama-architecture GGUF with random weights and a small real tokenizer, for tests of every layer.

    path = write_tiny_gguf(tmp_path / "tiny.gguf", wtype="q4_1")

The file has what a real one has: byte-level BPE (256 byte tokens, some merges, three special tokens), a ChatML
template, Q/K rows in GGUF order, a tied head unless asked otherwise. The same arguments give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TEXT, IM_START, IM_END = range(3)

# Ranked; "G" stands for the byte-level alphabet's space.
MERGES = (
    "G t", "G a", "h e", "i n", "r e", "o n", "Gt he", "e r", "G s", "a t", "G w", "o r", "G o", "e n", "l l",
    "i s", "a n", "G h", "o u", "Ga n", "Gan d", "in g", "G b", "G c", "e s", "G m", "G f", "e d", "Go f", "G p",
    "Gt o", "G in", "l o", "Gh e", "Ghe llo", "he ll", "hell o", "Gw or", "Gwor l", "Gworl d",
)  # fmt: skip

# Types that the gguf package reads and cannot write, and where their blocks keep the float16 scales.
HALVES = {
    "IQ4_NL": (0,), "IQ4_XS": (0,), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
}  # fmt: skip

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_alphabet() -> list[str]:
    """The printable character that stands for each byte in byte-level BPE (GPT-2's table), by byte value."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = [""] * 256
    for byte in printable:
        table[byte] = chr(byte)
    others = [byte for byte in range(256) if not table[byte]]
    for index, byte in enumerate(others):
        table[byte] = chr(256 + index)
    return table


def tiny_tokenizer() -> tuple[list[str], list[str]]:
    """(tokens, merges): specials 0..2, the 256 bytes in alphabet order 3..258, then one token per merge."""
    space = byte_alphabet()[ord(" ")]
    bytes_sorted = sorted(byte_alphabet())
    tokens = [*SPECIAL_TOKENS, *bytes_sorted]
    merges: list[str] = []
    for merge in MERGES:
        left, right = merge.replace("G", space).split(" ")
        if left in tokens and right in tokens and left + right not in tokens:
            tokens.append(left + right)
            merges.append(f"{left} {right}")
    return tokens, merges


def tiny_vocab_size() -> int:
    return len(tiny_tokenizer()[0])


def write_tiny_gguf(
    path: str | Path,
    *,
    wtype: str = "q4_1",
    embedding_type: str = "",
    layers: int = 2,
    hidden: int = 64,
    heads: int = 2,
    kv_heads: int = 1,
    head_dim: int = 0,
    ffn: int = 128,
    vocab: int = 0,
    context: int = 2048,
    tied: bool = True,
    template: str | None = CHATML,
    architecture: str = "llama",
    seed: int = 0,
    extra: Mapping[str, float | int | str] | None = None,
    tensors: Mapping[str, npt.NDArray[np.float32]] | None = None,
    types: Mapping[str, str] | None = None,
) -> Path:
    """Write the file and return its path.

    `wtype`: any type in lower case for the matrices (those with blocks of 256 values need sizes that fit: hidden=256);
    `embedding_type` defaults to q8_0 for quantized ones and to `wtype` otherwise. `vocab` 0 means just the tokenizer's
    tokens; more are filled with unused ones. `extra` adds or replaces metadata under its full key; `tensors` adds or
    replaces tensors (float32); `types` stores some tensors in another type than `wtype`.
    """
    rng = np.random.default_rng(seed)
    writer = GGUFWriter(path, architecture)
    metadata: dict[str, float | int | str] = {
        "general.name": "Tiny Test",
        f"{architecture}.block_count": layers,
        f"{architecture}.context_length": context,
        f"{architecture}.embedding_length": hidden,
        f"{architecture}.feed_forward_length": ffn,
        f"{architecture}.attention.head_count": heads,
        f"{architecture}.attention.head_count_kv": kv_heads,
        f"{architecture}.rope.freq_base": 10000.0,
        f"{architecture}.rope.dimension_count": head_dim or hidden // heads,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
    }
    if head_dim:
        metadata |= {f"{architecture}.attention.{part}_length": head_dim for part in ("key", "value")}
    head_dim = head_dim or hidden // heads
    _write_metadata(writer, metadata | dict(extra or {}))
    vocab = _write_tokenizer(writer, vocab, template)

    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab, hidden), "output_norm.weight": (hidden,)}
    if not tied:
        shapes["output.weight"] = (vocab, hidden)
    for layer in range(layers):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (hidden,),
            f"blk.{layer}.attn_q.weight": (heads * head_dim, hidden),
            f"blk.{layer}.attn_k.weight": (kv_heads * head_dim, hidden),
            f"blk.{layer}.attn_v.weight": (kv_heads * head_dim, hidden),
            f"blk.{layer}.attn_output.weight": (hidden, heads * head_dim),
            f"blk.{layer}.ffn_norm.weight": (hidden,),
            f"blk.{layer}.ffn_gate.weight": (ffn, hidden),
            f"blk.{layer}.ffn_up.weight": (ffn, hidden),
            f"blk.{layer}.ffn_down.weight": (hidden, ffn),
        }
    given = dict(tensors or {})
    embedding_type = embedding_type or ("q8_0" if "q" in wtype else wtype)
    for name, shape in shapes.items():
        kind = embedding_type if name in ("token_embd.weight", "output.weight") else wtype
        kind = (types or {}).get(name, "f32" if len(shape) == 1 else kind)
        _add_tensor(writer, name, given.pop(name, _random_weight(rng, shape)), kind)
    for name, values in given.items():
        _add_tensor(writer, name, values, "f32" if values.ndim == 1 else wtype)

    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(path)


def _random_weight(rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    if len(shape) == 1:
        return (1 + 0.1 * rng.standard_normal(shape)).astype(np.float32)
    return (rng.standard_normal(shape) * 1.5 / np.sqrt(shape[-1])).astype(np.float32)


def _add_tensor(writer: GGUFWriter, name: str, values: npt.NDArray[np.float32], kind: str) -> None:
    qtype = GGMLQuantizationType[kind.upper()]
    if kind.upper() in HALVES:
        rng = np.random.default_rng(len(name) + values.size)
        writer.add_tensor(name, random_blocks(rng, values.shape, qtype, float(values.std())), raw_dtype=qtype)
    else:
        writer.add_tensor(name, gguf.quants.quantize(values.astype(np.float32), qtype), raw_dtype=qtype)


def random_blocks(
    rng: np.random.Generator, shape: tuple[int, ...], qtype: GGMLQuantizationType, spread: float
) -> npt.NDArray[np.uint8]:
    """Random bytes of a type that the gguf package reads and cannot write; their values have about mean 0 and the
    given standard deviation."""
    block, size = gguf.GGML_QUANT_SIZES[qtype]
    raw = rng.integers(0, 256, (shape[0], shape[1] // block, size), np.uint8)
    starts = HALVES[qtype.name]

    def scale(start: int, value: float) -> None:
        raw[..., start : start + 2] = np.array([value], np.float16).view(np.uint8)

    def mean_of(*scales: float) -> tuple[float, float]:
        for start, value in zip(starts, scales, strict=True):
            scale(start, value)
        values = gguf.quants.dequantize(raw.reshape(-1, size), qtype)
        return float(values.mean()), float(values.std())

    if len(starts) == 2:  # value = d * .. - dmin * ..: the part of dmin takes the mean away
        mean, minimum = mean_of(1, 0)[0], -mean_of(0, 1)[0]
        factor = spread / mean_of(1, mean / minimum)[1]
        mean_of(factor, factor * mean / minimum)
    else:
        mean_of(spread / mean_of(1)[1])
    return raw.reshape(shape[0], -1)


def _write_metadata(writer: GGUFWriter, values: Mapping[str, float | int | str]) -> None:
    for key, value in values.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, value)


def _write_tokenizer(writer: GGUFWriter, vocab: int, template: str | None) -> int:
    tokens, merges = tiny_tokenizer()
    tokens += [f"<unused_{index}>" for index in range(vocab - len(tokens))]
    normal, control, unused = 1, 3, 5
    types = [control] * len(SPECIAL_TOKENS) + [normal] * (len(tokens) - len(SPECIAL_TOKENS))
    types = [unused if token.startswith("<unused_") else kind for token, kind in zip(tokens, types, strict=True)]
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_string("tokenizer.ggml.pre", "smollm")
    writer.add_array("tokenizer.ggml.tokens", tokens)
    writer.add_array("tokenizer.ggml.token_type", types)
    writer.add_array("tokenizer.ggml.merges", merges)
    writer.add_uint32("tokenizer.ggml.bos_token_id", IM_START)
    writer.add_uint32("tokenizer.ggml.eos_token_id", IM_END)
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
    writer.add_bool("tokenizer.ggml.add_space_prefix", False)
    if template is not None:
        writer.add_string("tokenizer.chat_template", template)
    return len(tokens)
