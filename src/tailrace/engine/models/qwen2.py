"""Qwen 2 and 2.5 (Yang et al., 2024, arXiv:2407.10671): the llama layout with biases on queries, keys and values."""

from __future__ import annotations

from functools import partial

from tailrace.engine.models.base import ModelSpec
from tailrace.engine.models.decoder import layer_tensors, read_decoder
from tailrace.engine.models.metadata import Metadata
from tailrace.engine.models.rope import read_rope
from tailrace.engine.weights.checkpoint import Checkpoint


def describe(file: Checkpoint) -> ModelSpec:
    metadata = Metadata(file, "qwen2")
    return read_decoder(metadata, (read_rope(metadata),), partial(layer_tensors, biases=True))
