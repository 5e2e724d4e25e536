"""A BERT-type encoder's folder in GGUF's terms, as `hf` does it for decoders.

Refuses relative positions, other activations than GELU, and quantized weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tailrace.errors import ModelFileError

ARCHITECTURE = "BertModel"
_LAYER = re.compile(r"encoder\.layer\.(0|[1-9]\d{0,5})\.([\w.]+)\.(weight|bias)")
_OUTER = MappingProxyType(
    {
        "embeddings.word_embeddings.weight": "token_embd.weight",
        "embeddings.position_embeddings.weight": "position_embd.weight",
        "embeddings.token_type_embeddings.weight": "token_types.weight",
        "embeddings.LayerNorm.weight": "token_embd_norm.weight",
        "embeddings.LayerNorm.bias": "token_embd_norm.bias",
    }
)
_PARTS = MappingProxyType(
    {
        "attention.self.query": "attn_q",
        "attention.self.key": "attn_k",
        "attention.self.value": "attn_v",
        "attention.output.dense": "attn_output",
        "attention.output.LayerNorm": "attn_output_norm",
        "intermediate.dense": "ffn_up",
        "output.dense": "ffn_down",
        "output.LayerNorm": "layer_output_norm",
    }
)
_SIZES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}


class BertConfig:
    """A folder's `config.json`, checked. `where` names it in messages. Raises ModelFileError."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where
        wanted = {
            "hidden_act": ("gelu", (None, "gelu")),
            "position_embedding_type": ("absolute", (None, "absolute")),
            "quantization_config": ("nothing", (None,)),
        }
        for key, (known, accepted) in wanted.items():
            if values.get(key) not in accepted:
                raise ModelFileError(f"{where}: {key} is {values.get(key)!r:.80}; {known} is what can be run.")

    def metadata(self) -> dict[str, Any]:
        """GGUF keys of the architecture."""
        sizes = {f"bert.{key}": self._values.get(stored) for key, stored in _SIZES.items()}
        epsilon = self._values.get("layer_norm_eps", 1e-12)
        return {"general.architecture": "bert", **sizes, "bert.attention.layer_norm_epsilon": epsilon}

    def name_of(self, stored: str) -> str | None:
        """The GGUF name of a tensor, or its own for one that is unknown."""
        plain = stored.removeprefix("bert.")
        layer = _LAYER.fullmatch(plain)
        part = None if layer is None else _PARTS.get(layer[2])
        if layer is None or part is None:
            return _OUTER.get(plain, plain)
        return f"blk.{layer[1]}.{part}.{layer[3]}"

    def is_from_one(self, name: str) -> bool:
        return False

    def rope_factors(self) -> npt.NDArray[np.float32] | None:
        return None
