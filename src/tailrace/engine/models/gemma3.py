"""Gemma 3, text (Gemma Team, 2025, arXiv:2503.19786).

Against llama: embeddings times sqrt(hidden), an RMSNorm on each head of queries and keys and one behind each sublayer,
GELU instead of SiLU, and layers in periods: all but the last of each see a sliding window and have a rope of their own.
Norm weights are stored as multipliers. The head is the embedding.
"""

from __future__ import annotations

import math

from tailrace.engine.models.base import LayerTensors, ModelSpec
from tailrace.engine.models.decoder import layer_tensors, read_decoder
from tailrace.engine.models.metadata import Metadata
from tailrace.engine.models.rope import Rope, read_rope
from tailrace.engine.weights.checkpoint import Checkpoint

PERIOD = 6
THETA, LOCAL_THETA = 1e6, 1e4
LAYERS_27B = 62


def describe(file: Checkpoint) -> ModelSpec:
    metadata = Metadata(file, "gemma3")
    everywhere = read_rope(metadata, theta=THETA)
    nearby = Rope(theta=metadata.number("rope.freq_base_swa", LOCAL_THETA), dim=everywhere.dim)
    period = metadata.size("attention.sliding_window_pattern", PERIOD)
    window = metadata.size("attention.sliding_window")

    def layer(index: int) -> LayerTensors:
        slides = (index + 1) % period != 0
        return layer_tensors(
            index, head_norms=True, out_norms=True, window=window if slides else 0, rope=1 if slides else 0
        )

    return read_decoder(
        metadata,
        (everywhere, nearby),
        layer,
        activation="gelu",
        embedding_scale=math.sqrt(metadata.size("embedding_length")),
        attention_scale=_attention_scale(metadata),
        attention_softcap=metadata.cap("attn_logit_softcapping"),
        logit_softcap=metadata.cap("final_logit_softcapping"),
    )


def _attention_scale(metadata: Metadata) -> float:
    """Scores are divided by the root of the head size; by that of hidden / heads in the 27B model, whose files do not
    say so."""
    if metadata.has("attention.scale"):
        return metadata.number("attention.scale")
    if metadata.size("block_count") == LAYERS_27B:
        return math.sqrt(metadata.size("attention.head_count") / metadata.size("embedding_length"))
    return 0.0
