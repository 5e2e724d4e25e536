"""The llama architecture: SmolLM2, Llama 2 and 3, Mistral, and what shares their layout.

RMSNorm before attention and feed-forward, grouped-query attention with rope, SwiGLU, no biases. GGUF stores its query
and key rows as rotated pairs.
"""

from __future__ import annotations

from tailrace.engine.models.base import ModelSpec
from tailrace.engine.models.decoder import layer_tensors, read_decoder
from tailrace.engine.models.metadata import Metadata
from tailrace.engine.models.rope import read_rope
from tailrace.engine.weights.checkpoint import Checkpoint


def describe(file: Checkpoint) -> ModelSpec:
    metadata = Metadata(file, "llama")
    return read_decoder(metadata, (read_rope(metadata, interleaved=file.paired_rope),), layer_tensors)
