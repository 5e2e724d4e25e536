"""The llama architecture: SmolLM2, Llama 2 and 3, Mistral, and what shares their layout.

RMSNorm before attention and feed-forward, grouped-query attention with rope, SwiGLU, no biases. Refuses mixtures
of experts and rope scalings other than none, linear and Llama 3's frequency factors.
"""

from __future__ import annotations

from tailrace.engine.models.base import LayerTensors, Metadata, ModelSpec, Rope, check_dimensions, check_tensors
from tailrace.engine.weights.checkpoint import Checkpoint

EMBEDDING = "token_embd.weight"
HEAD = "output.weight"
ROPE_FACTORS = "rope_freqs.weight"
WITHOUT_EFFECT = (".attn_rot_embd",)  # old converters stored inverse frequencies; they follow from the metadata


def describe(file: Checkpoint) -> ModelSpec:
    metadata = Metadata(file)
    if metadata.values.get("llama.expert_count"):
        count = metadata.values["llama.expert_count"]
        raise metadata.error(f"it is a mixture of {count!r} experts; only dense llama models run.")
    hidden, heads = metadata.size("llama.embedding_length"), metadata.size("llama.attention.head_count")
    head_dim = metadata.size("llama.attention.key_length", hidden // heads)
    if metadata.size("llama.attention.value_length", head_dim) != head_dim:
        raise metadata.error("its value heads and key heads differ in size; the executor needs them equal.")
    layers = _layers(metadata)
    spec = ModelSpec(
        architecture="llama",
        name=metadata.text("general.name", file.path.stem),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=metadata.size("llama.attention.head_count_kv", heads),
        head_dim=head_dim,
        ffn=metadata.size("llama.feed_forward_length"),
        vocab=_vocab(metadata),
        context=metadata.size("llama.context_length"),
        norm_eps=metadata.number("llama.attention.layer_norm_rms_epsilon"),
        rope=_rope(metadata, head_dim),
        embedding=EMBEDDING,
        final_norm="output_norm.weight",
        head=HEAD if HEAD in file.tensors else EMBEDDING,
        blocks=tuple(_block(layer) for layer in range(layers)),
    )
    check_dimensions(spec, metadata)
    check_tensors(spec, metadata, WITHOUT_EFFECT)
    return spec


def _layers(metadata: Metadata) -> int:
    layers, tensors = metadata.size("llama.block_count"), len(metadata.file.tensors)
    if layers > tensors:
        raise metadata.error(f"it claims {layers} layers but has {tensors} tensors.")
    return layers


def _vocab(metadata: Metadata) -> int:
    """The embedding's own row count: `llama.vocab_size` is optional and sometimes stale."""
    info = metadata.file.tensors.get(EMBEDDING)
    if info is None:
        raise metadata.error(f"tensor {EMBEDDING!r} is missing; a llama model has it.")
    return info.shape[0]


def _rope(metadata: Metadata, head_dim: int) -> Rope:
    kind = metadata.text("llama.rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise metadata.error(f"rope scaling {kind!r} is not built; 'none', 'linear' and frequency factors are.")
    linear = metadata.number("llama.rope.scaling.factor", 1.0) if kind == "linear" else 1.0
    return Rope(
        theta=metadata.number("llama.rope.freq_base", 10000.0),
        dim=metadata.size("llama.rope.dimension_count", head_dim),
        linear=metadata.number("llama.rope.scale_linear", linear),
        factors=ROPE_FACTORS if ROPE_FACTORS in metadata.file.tensors else None,
        interleaved=metadata.file.paired_rope,
    )


def _block(layer: int) -> LayerTensors:
    def tensor(part: str) -> str:
        return f"blk.{layer}.{part}.weight"

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
    )
