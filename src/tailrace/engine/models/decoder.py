"""The decoder that all architectures here vary: pre-norm attention with grouped queries, then a gated feed-forward.

Owns what the metadata of each of them says in the same words; an architecture's own file says how it departs. Refuses
mixtures of experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailrace.engine.models.base import LayerTensors, ModelSpec, check_dimensions, check_tensors
from tailrace.engine.models.metadata import Metadata
from tailrace.engine.models.rope import Rope

EMBEDDING = "token_embd.weight"
HEAD = "output.weight"
WITHOUT_EFFECT = (".attn_rot_embd",)  # old converters stored inverse frequencies; they follow from the metadata


def read_decoder(
    metadata: Metadata, ropes: tuple[Rope, ...], layer: Callable[[int], LayerTensors], **departures: Any
) -> ModelSpec:
    """The declaration, fully checked. `layer` gives the tensors of each layer; `departures` are fields of ModelSpec."""
    if metadata.values.get(f"{metadata.architecture}.expert_count"):
        count = metadata.values[f"{metadata.architecture}.expert_count"]
        raise metadata.error(f"it is a mixture of {count!r} experts; only dense {metadata.architecture} models run.")
    hidden, heads = metadata.size("embedding_length"), metadata.size("attention.head_count")
    head_dim = metadata.size("attention.key_length", max(1, hidden // heads))
    if metadata.size("attention.value_length", head_dim) != head_dim:
        raise metadata.error("its value heads and key heads differ in size; the executor needs them equal.")
    layers = _layers(metadata)
    spec = ModelSpec(
        architecture=metadata.architecture,
        name=metadata.text("general.name", metadata.file.path.stem),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=metadata.size("attention.head_count_kv", heads),
        head_dim=head_dim,
        ffn=metadata.size("feed_forward_length"),
        vocab=_vocab(metadata),
        context=metadata.size("context_length"),
        norm_eps=metadata.number("attention.layer_norm_rms_epsilon"),
        ropes=ropes,
        embedding=EMBEDDING,
        final_norm="output_norm.weight",
        head=HEAD if HEAD in metadata.file.tensors else EMBEDDING,
        blocks=tuple(layer(index) for index in range(layers)),
        pooling=metadata.pooling(),
        **departures,
    )
    check_dimensions(spec, metadata)
    check_tensors(spec, metadata, WITHOUT_EFFECT)
    return spec


def layer_tensors(
    layer: int,
    *,
    biases: bool = False,
    head_norms: bool = False,
    out_norms: bool = False,
    window: int = 0,
    rope: int = 0,
) -> LayerTensors:
    """The names that GGUF gives to a layer's tensors; the flags are what an architecture has besides."""

    def tensor(part: str, kind: str = "weight") -> str:
        return f"blk.{layer}.{part}.{kind}"

    return LayerTensors(
        attn_norm=tensor("attn_norm"),
        q=tensor("attn_q"),
        k=tensor("attn_k"),
        v=tensor("attn_v"),
        o=tensor("attn_output"),
        ffn_norm=tensor("ffn_norm"),
        gate=tensor("ffn_gate"),
        up=tensor("ffn_up"),
        down=tensor("ffn_down"),
        q_bias=tensor("attn_q", "bias") if biases else None,
        k_bias=tensor("attn_k", "bias") if biases else None,
        v_bias=tensor("attn_v", "bias") if biases else None,
        q_norm=tensor("attn_q_norm") if head_norms else None,
        k_norm=tensor("attn_k_norm") if head_norms else None,
        attn_out_norm=tensor("post_attention_norm") if out_norms else None,
        ffn_out_norm=tensor("post_ffw_norm") if out_norms else None,
        window=window,
        rope=rope,
    )


def _layers(metadata: Metadata) -> int:
    layers, tensors = metadata.size("block_count"), len(metadata.file.tensors)
    if layers > tensors:
        raise metadata.error(f"it claims {layers} layers but has {tensors} tensors.")
    return layers


def _vocab(metadata: Metadata) -> int:
    """The embedding's own row count: `vocab_size` is optional and sometimes stale."""
    info = metadata.file.tensors.get(EMBEDDING)
    if info is None:
        raise metadata.error(f"tensor {EMBEDDING!r} is missing; a {metadata.architecture} model has it.")
    return info.shape[0]
