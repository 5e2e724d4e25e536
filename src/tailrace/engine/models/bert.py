"""BERT-type encoders (Devlin et al., 2018, arXiv:1810.04805): texts to vectors, every token seeing all of its text.

Word, position and token-type embeddings are added and normed; in each layer a layer norm stands behind the sum of
attention, and one behind that of a feed-forward of GELU (by the error function) without a gate; everything has biases.
The pooler, a layer that only classification uses, is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.engine.models.base import ModelSpec, check_dimensions, check_tensors
from tailrace.engine.models.metadata import Metadata
from tailrace.engine.weights.checkpoint import Checkpoint

WITHOUT_EFFECT = ("pooler.dense.weight", "pooler.dense.bias", "embeddings.position_ids")
LINEARS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down")
NORMS = ("attn_output_norm", "layer_output_norm")
POSITIONS, TYPES, EMBED_NORM = "position_embd.weight", "token_types.weight", "token_embd_norm"


@dataclass(frozen=True, slots=True)
class EncoderSpec(ModelSpec):
    """The names of its tensors follow from its number of layers."""

    types: int = 2  # kinds of tokens; texts here have the first

    @property
    def kv_layers(self) -> int:
        """One for all: a text's keys are of no use behind their layer."""
        return 1

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        hidden, ffn = self.hidden, self.ffn
        shapes: dict[str, tuple[int, ...]] = {
            self.embedding: (self.vocab, hidden),
            POSITIONS: (self.context, hidden),
            TYPES: (self.types, hidden),
            **{f"{EMBED_NORM}.{part}": (hidden,) for part in ("weight", "bias")},
        }
        wide = {"ffn_up": (ffn, hidden), "ffn_down": (hidden, ffn)}
        for layer in range(self.layers):
            for part in LINEARS:
                shape = wide.get(part, (hidden, hidden))
                shapes |= {f"blk.{layer}.{part}.weight": shape, f"blk.{layer}.{part}.bias": shape[:1]}
            shapes |= {f"blk.{layer}.{part}.{kind}": (hidden,) for part in NORMS for kind in ("weight", "bias")}
        return shapes


def describe(file: Checkpoint) -> EncoderSpec:
    metadata = Metadata(file, "bert")
    hidden, heads = metadata.size("embedding_length"), metadata.size("attention.head_count")
    if hidden % heads:
        raise metadata.error(f"{heads} heads do not divide the hidden size {hidden}.")
    layers = metadata.size("block_count")
    if layers > len(file.tensors):
        raise metadata.error(f"it claims {layers} layers but has {len(file.tensors)} tensors.")
    spec = EncoderSpec(
        architecture="bert",
        name=metadata.text("general.name", file.path.stem),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=metadata.size("feed_forward_length"),
        vocab=_rows(metadata, "token_embd.weight"),
        context=metadata.size("context_length"),
        norm_eps=metadata.number("attention.layer_norm_epsilon"),
        ropes=(),
        embedding="token_embd.weight",
        final_norm="",
        head="",
        blocks=(),
        pooling=metadata.pooling(),
        types=_rows(metadata, TYPES),
    )
    check_dimensions(spec, metadata)
    check_tensors(spec, metadata, WITHOUT_EFFECT)
    return spec


def _rows(metadata: Metadata, tensor: str) -> int:
    info = metadata.file.tensors.get(tensor)
    if info is None:
        raise metadata.error(f"tensor {tensor!r} is missing; a bert model has it.")
    return info.shape[0]
