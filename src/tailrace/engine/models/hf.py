"""Model folders as the Hugging Face hub has them, in GGUF's terms: `config.json` to metadata, tensor names to names.

Owns what each `architectures` entry stands for, so that a declaration is written once for both formats. Refuses
quantized weights, other activations than an architecture's own, and entries that are not listed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tailrace.errors import ModelFileError
from tailrace.frozen import frozen

F32 = npt.NDArray[np.float32]

_LARGEST = 1e300  # a number that a float holds
_MAX_HEAD_DIM = 1 << 14
ROPE_FACTORS = "rope_freqs.weight"
_LAYER = re.compile(r"model\.layers\.(0|[1-9]\d{0,5})\.([\w.]+)\.(weight|bias)")
_OUTER = MappingProxyType(
    {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
)
_WITHOUT_EFFECT = ("rotary_emb.inv_freq",)  # follows from the configuration
_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_FOUR_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


@frozen
class Family:
    """What an entry of `architectures` stands for. `norms_from_one`: norms are stored less 1."""

    architecture: str
    activation: str = "silu"
    parts: Mapping[str, str] = field(default_factory=lambda: _PARTS)
    norms_from_one: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)


FAMILIES = MappingProxyType(
    {
        "LlamaForCausalLM": Family("llama"),
        "MistralForCausalLM": Family("llama"),
        "Qwen2ForCausalLM": Family("qwen2"),
        "Qwen3ForCausalLM": Family("qwen3"),
        "Gemma3ForCausalLM": Family(
            "gemma3",
            activation="gelu_pytorch_tanh",
            parts=_PARTS | _FOUR_NORMS,
            norms_from_one=True,
            defaults={"tie_word_embeddings": True, "head_dim": 256, "rope_theta": 1e6, "hidden_act": None},
        ),
    }
)


class FolderConfig:
    """A folder's `config.json`, checked. `where` names it in messages. Raises ModelFileError."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._where = where
        self.family = self._family(values)
        self._values = {**self.family.defaults, **{key: value for key, value in values.items() if value is not None}}
        self._rope = self._rope_values()
        self._check()

    @property
    def tied(self) -> bool:
        return bool(self._values.get("tie_word_embeddings", False))

    def metadata(self) -> dict[str, Any]:
        """GGUF keys of the architecture."""
        prefix = self.family.architecture
        found = {"general.architecture": prefix}
        return found | {f"{prefix}.{key}": value for key, value in self._entries()}

    def name_of(self, stored: str) -> str | None:
        """The GGUF name of a tensor, its own for one that is unknown, None for one without effect."""
        if stored.endswith(_WITHOUT_EFFECT) or (self.tied and stored == "lm_head.weight"):
            return None
        layer = _LAYER.fullmatch(stored)
        if layer is None:
            return _OUTER.get(stored, stored)
        part = self.family.parts.get(layer[2])
        return stored if part is None else f"blk.{layer[1]}.{part}.{layer[3]}"

    def is_from_one(self, name: str) -> bool:
        """Whether 1 must be added to the tensor of this GGUF name."""
        return self.family.norms_from_one and name.endswith("norm.weight")

    def rope_factors(self) -> F32 | None:
        """Divisors of the frequencies [rope dim / 2] of the scaling that came with Llama 3.1: long waves are slowed,
        short ones are not, between them the two are blended."""
        if self._rope_kind() != "llama3":
            return None
        low, high = (self._number(self._rope, key) for key in ("low_freq_factor", "high_freq_factor"))
        factor, trained = (self._number(self._rope, key) for key in ("factor", "original_max_position_embeddings"))
        if high <= low:
            raise self._error(f"rope scaling: high_freq_factor {high:g} is not above low_freq_factor {low:g}")
        dim = self._rope_dim()
        frequency = self._number(self._rope, "rope_theta", 10000.0) ** (-np.arange(0, dim, 2) / dim)
        turns = trained * frequency / (2 * math.pi)  # of each wave in the context that the model was first trained on
        fast = np.clip((turns - low) / (high - low), 0, 1)
        factors: F32 = (1 / ((1 - fast) / factor + fast)).astype(np.float32)
        return factors

    def _entries(self) -> Iterator[tuple[str, Any]]:
        size, values = self._size, self._values
        yield "block_count", size("num_hidden_layers")
        yield "context_length", self._context()
        yield "embedding_length", size("hidden_size")
        yield "feed_forward_length", size("intermediate_size")
        yield "attention.head_count", size("num_attention_heads")
        yield "attention.head_count_kv", size("num_key_value_heads", size("num_attention_heads"))
        yield "attention.key_length", self._head_dim()
        yield "attention.value_length", self._head_dim()
        yield "attention.layer_norm_rms_epsilon", self._number(values, "rms_norm_eps", 1e-6)
        yield "rope.freq_base", self._number(self._rope, "rope_theta", 10000.0)
        yield "rope.dimension_count", self._rope_dim()
        yield from self._scaling()
        if self.family.architecture == "gemma3":
            yield from self._alternating()

    def _scaling(self) -> Iterator[tuple[str, Any]]:
        kind = self._rope_kind()
        if kind in ("default", "llama3"):  # the latter is a tensor of factors
            return
        yield "rope.scaling.type", kind
        yield "rope.scaling.factor", self._number(self._rope, "factor")
        keys = {
            "original_max_position_embeddings": "original_context_length",
            "attention_factor": "attention_factor",
            "beta_fast": "yarn_beta_fast",
            "beta_slow": "yarn_beta_slow",
        }
        for stored, key in keys.items():
            if self._rope.get(stored) is not None:
                value = self._number(self._rope, stored)
                yield f"rope.scaling.{key}", int(value) if key == "original_context_length" else value

    def _alternating(self) -> Iterator[tuple[str, Any]]:
        """Layers with a sliding window and their own rope, and every n-th without."""
        values = self._values
        yield "attention.sliding_window", self._size("sliding_window")
        yield "attention.sliding_window_pattern", self._pattern()
        yield "rope.freq_base_swa", self._number(values, "rope_local_base_freq", self._local_theta())
        scalar = self._number(values, "query_pre_attn_scalar", float(self._head_dim()))
        yield "attention.scale", scalar**-0.5
        for key in ("attn_logit_softcapping", "final_logit_softcapping"):
            if values.get(key) is not None:
                yield key, self._number(values, key)

    def _pattern(self) -> int:
        """How many layers are in one period, the last of it with full attention."""
        kinds = self._values.get("layer_types")
        if not isinstance(kinds, list):
            return self._size("sliding_window_pattern", 6)
        period = kinds.index("full_attention") + 1 if "full_attention" in kinds else len(kinds) + 1
        regular = ["full_attention" if (k + 1) % period == 0 else "sliding_attention" for k in range(len(kinds))]
        if kinds != regular:
            raise self._error("layer_types is not a regular pattern of sliding_attention and full_attention")
        return period

    def _local_theta(self) -> float:
        local = self._nested_rope("sliding_attention")
        return self._number(local, "rope_theta", 10000.0)

    def _family(self, values: Mapping[str, Any]) -> Family:
        found = values.get("architectures")
        name = found[0] if isinstance(found, list) and len(found) == 1 else found
        if not isinstance(name, str) or name not in FAMILIES:
            raise self._error(f"architectures is {found!r:.80}; those that run here are {', '.join(FAMILIES)}")
        return FAMILIES[name]

    def _check(self) -> None:
        quantized = self._values.get("quantization_config")
        if quantized is not None:
            method = quantized.get("quant_method") if isinstance(quantized, dict) else quantized
            raise self._error(
                f"its weights are quantized ({method!r:.40}); folders with F32, F16 or BF16 weights and GGUF files can "
                "be read"
            )
        key = "hidden_activation" if "hidden_activation" in self._values else "hidden_act"
        activation = self._values.get(key, self.family.activation) or self.family.activation
        if activation != self.family.activation:
            raise self._error(f"{key} is {activation!r:.40}; {self.family.activation!r} is what the architecture has")

    def _context(self) -> int:
        """Positions that the model's attention covers: one whose every layer slides is exact up to its window."""
        context, window = self._size("max_position_embeddings"), self._values.get("sliding_window")
        slides = self._values.get("use_sliding_window", True) and self.family.architecture != "gemma3"
        return min(context, self._size("sliding_window")) if slides and window else context

    def _head_dim(self) -> int:
        heads = self._size("num_attention_heads")
        return self._size("head_dim", max(1, self._size("hidden_size") // heads))

    def _rope_dim(self) -> int:
        dim = self._head_dim() * self._number({**self._values, **self._rope}, "partial_rotary_factor", 1.0)
        if dim > _MAX_HEAD_DIM:
            raise self._error(f"rope would cover {dim:g} values of a head; at most {_MAX_HEAD_DIM} are read")
        return int(dim)

    def _rope_values(self) -> Mapping[str, Any]:
        """Base and scaling, from the older keys (`rope_theta`, `rope_scaling`) or the newer (`rope_parameters`)."""
        older = self._values.get("rope_scaling") or {}
        newer = self._nested_rope("full_attention")
        if not isinstance(older, dict):
            raise self._error(f"rope_scaling is {older!r:.80}; an object is needed")
        theta = {"rope_theta": self._values["rope_theta"]} if "rope_theta" in self._values else {}
        return {**theta, **older, **newer}

    def _nested_rope(self, kind: str) -> Mapping[str, Any]:
        """`rope_parameters`, or its part for a kind of layer where it has one for each."""
        found = self._values.get("rope_parameters") or {}
        if isinstance(found, dict) and isinstance(found.get(kind), dict):
            found = found[kind]
        if not isinstance(found, dict):
            raise self._error(f"rope_parameters is {found!r:.80}; an object is needed")
        return found

    def _rope_kind(self) -> str:
        kind = self._rope.get("rope_type", self._rope.get("type", "default"))
        if not isinstance(kind, str):
            raise self._error(f"the rope type is {kind!r:.40}; text is needed")
        return kind

    def _size(self, key: str, default: int | None = None) -> int:
        value = self._values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
            raise self._error(f"{key} is {value!r:.40}; a whole number above 0 is needed")
        return value

    def _number(self, values: Mapping[str, Any], key: str, default: float | None = None) -> float:
        value = values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _LARGEST:
            raise self._error(f"{key} is {value!r:.40}; a number above 0 is needed")
        return float(value)

    def _error(self, found: str) -> ModelFileError:
        return ModelFileError(f"{self._where}: {found}.")
