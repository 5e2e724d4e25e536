"""A tiny BERT-type encoder with random weights, as a model folder with a small real WordPiece tokenizer.

folder = write_tiny_bert(tmp_path / "tiny-bert")
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

F32 = npt.NDArray[np.float32]
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?-:"  # with the words more than the 97 tokens that a calibration uses
WORDS = ("the", "river", "stone", "##s", "lamp", "over", "green", "##er")


def tiny_bert_config(**fields: Any) -> dict[str, Any]:
    return {
        "architectures": ["BertModel"],
        "hidden_act": "gelu",
        "hidden_size": 64,
        "intermediate_size": 128,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 320,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "position_embedding_type": "absolute",
        "type_vocab_size": 2,
        "vocab_size": len(_vocabulary()),
        **fields,
    }


def tiny_bert_weights(config: dict[str, Any], seed: int = 0) -> dict[str, F32]:
    """Under the names of model folders; norms near 1, biases that matter."""
    rng = np.random.default_rng(seed)
    hidden, ffn = config["hidden_size"], config["intermediate_size"]

    def matrix(*shape: int) -> F32:
        return (rng.standard_normal(shape) * 1.5 / np.sqrt(shape[-1])).astype(np.float32)

    def vector(size: int, mean: float) -> F32:
        return (mean + 0.2 * rng.standard_normal(size)).astype(np.float32)

    found = {
        "embeddings.word_embeddings.weight": matrix(config["vocab_size"], hidden),
        "embeddings.position_embeddings.weight": matrix(config["max_position_embeddings"], hidden),
        "embeddings.token_type_embeddings.weight": matrix(config["type_vocab_size"], hidden),
        "pooler.dense.weight": matrix(hidden, hidden),
        "pooler.dense.bias": vector(hidden, 0),
    }
    norms = ["embeddings.LayerNorm"]
    linears: dict[str, tuple[int, int]] = {}
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}"
        norms += [f"{at}.attention.output.LayerNorm", f"{at}.output.LayerNorm"]
        linears |= {f"{at}.attention.self.{part}": (hidden, hidden) for part in ("query", "key", "value")}
        linears[f"{at}.attention.output.dense"] = (hidden, hidden)
        linears |= {f"{at}.intermediate.dense": (ffn, hidden), f"{at}.output.dense": (hidden, ffn)}
    for name in norms:
        found |= {f"{name}.weight": vector(hidden, 1), f"{name}.bias": vector(hidden, 0)}
    for name, shape in linears.items():
        found |= {f"{name}.weight": matrix(*shape), f"{name}.bias": vector(shape[0], 0)}
    return found


def write_tiny_bert(folder: Path, *, pooling: str | None = "mean_tokens", seed: int = 0, **fields: Any) -> Path:
    """`pooling` as sentence-transformers writes it, None: not at all. `fields` go into config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_bert_config(**fields)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tiny_bert_weights(config, seed), folder / "model.safetensors")
    _tokenizer().save(str(folder / "tokenizer.json"))
    if pooling is not None:
        (folder / "1_Pooling").mkdir(exist_ok=True)
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{pooling}": True}))
    return folder


def _vocabulary() -> list[str]:
    return [*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS), *WORDS]


def _tokenizer() -> Tokenizer:
    vocabulary = {token: i for i, token in enumerate(_vocabulary())}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(list(SPECIAL))
    around = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
    made.enable_truncation(8)  # as published folders have it; the context is what counts
    made.enable_padding(length=8)
    return made
