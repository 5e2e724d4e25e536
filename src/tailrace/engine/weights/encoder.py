"""An encoder's tensors as the executor wants them: its linears, norms and biases, and what is added to embeddings."""

from __future__ import annotations

import numpy as np

from tailrace.engine.models.base import ModelSpec
from tailrace.engine.models.bert import EMBED_NORM, POSITIONS, TYPES, EncoderSpec
from tailrace.engine.weights.blocks import F32
from tailrace.engine.weights.checkpoint import Checkpoint
from tailrace.engine.weights.source import Linear, WeightSource


def source_of(file: Checkpoint, spec: ModelSpec) -> WeightSource:
    """The reader of a model's weights, whatever kind it is."""
    return EncoderSource(file, spec) if isinstance(spec, EncoderSpec) else WeightSource(file, spec)


class EncoderSource(WeightSource):
    spec: EncoderSpec

    def linears(self) -> list[Linear]:
        """In the order of a forward pass."""
        spec, result = self.spec, []
        for layer in range(spec.layers):
            names = {part: f"blk.{layer}.{part}.weight" for part in ("attn_q", "attn_k", "attn_v", "attn_output")}
            qkv = (names["attn_q"], names["attn_k"], names["attn_v"])
            result += [
                self._fused(f"qkv.{layer}", qkv, np.arange(3 * spec.hidden)),
                Linear(f"o.{layer}", (names["attn_output"],), spec.hidden, spec.hidden),
                Linear(f"up.{layer}", (f"blk.{layer}.ffn_up.weight",), spec.ffn, spec.hidden),
                Linear(f"down.{layer}", (f"blk.{layer}.ffn_down.weight",), spec.hidden, spec.ffn),
            ]
        return result

    def norms(self) -> dict[str, F32]:
        return {name: self._checked_vector(f"{tensor}.weight") for name, tensor in self._norms().items()}

    def biases(self) -> dict[str, F32]:
        """Of linears and of norms."""
        found = {name: self._checked_vector(f"{tensor}.bias") for name, tensor in self._norms().items()}
        for layer in range(self.spec.layers):
            parts = [self._checked_vector(f"blk.{layer}.attn_{part}.bias") for part in "qkv"]
            found |= {
                f"qkv.{layer}": np.concatenate(parts),
                f"o.{layer}": self._checked_vector(f"blk.{layer}.attn_output.bias"),
                f"up.{layer}": self._checked_vector(f"blk.{layer}.ffn_up.bias"),
                f"down.{layer}": self._checked_vector(f"blk.{layer}.ffn_down.bias"),
            }
        return found

    def positions(self, count: int) -> F32:
        """[count, hidden]: what is added to the embedding of each position, all tokens being of the first kind."""
        return self._finite(POSITIONS, self.matrix(POSITIONS)[:count] + self.matrix(TYPES)[0])

    def _norms(self) -> dict[str, str]:
        names = {"embed": EMBED_NORM}
        for layer in range(self.spec.layers):
            names |= {f"attn_out.{layer}": f"blk.{layer}.attn_output_norm"}
            names |= {f"ffn_out.{layer}": f"blk.{layer}.layer_output_norm"}
        return names
