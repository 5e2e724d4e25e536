"""Qwen 3, dense (Yang et al., 2025, arXiv:2505.09388): the llama layout with norms of queries and keys.

These are RMSNorms of each head, before rope. No biases; the size of a head is independent of the hidden size.
"""

from __future__ import annotations

from functools import partial

from tailrace.engine.models.base import ModelSpec
from tailrace.engine.models.decoder import layer_tensors, read_decoder
from tailrace.engine.models.metadata import Metadata
from tailrace.engine.models.rope import read_rope
from tailrace.engine.weights.checkpoint import Checkpoint


def describe(file: Checkpoint) -> ModelSpec:
    metadata = Metadata(file, "qwen3")
    return read_decoder(metadata, (read_rope(metadata),), partial(layer_tensors, head_norms=True))
