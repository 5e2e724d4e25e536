"""The model file's tensors as the executor wants them: fused linears, row orders, float32 on demand.

Owns which stored rows make up each of the executor's matrices. Numbers are only read here; quantize.py changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tailrace.engine.models.base import ModelSpec
from tailrace.engine.weights.blocks import F32, U8
from tailrace.engine.weights.checkpoint import Checkpoint
from tailrace.engine.weights.dequant import AFFINE4, affine4, dequantize
from tailrace.errors import ModelFileError
from tailrace.frozen import frozen

GATE_UP_ROWS = 16  # gate rows, then the matching up rows, and so on
CHUNK_VALUES = 1 << 21  # weights worked on at a time: a head of 262,144 rows would be 700 MB in float32
STRIP_ROWS = 64  # packed layouts are made of whole strips, so that chunks of them can be packed one by one
Order = npt.NDArray[np.intp]
Arrays = TypeVar("Arrays", bound=tuple[npt.NDArray[Any], ...])


@frozen
class Linear:
    """One matrix of the executor: rows of `tensors`, joined, then taken in `order` (None: as they come)."""

    name: str
    tensors: tuple[str, ...]
    n: int
    k: int
    order: Order | None = None


EVERY = slice(None)


def row_chunks(rows: int, columns: int) -> Iterator[slice]:
    """Parts of a matrix of about CHUNK_VALUES, in whole strips but for the last."""
    size = max(STRIP_ROWS, CHUNK_VALUES // columns // STRIP_ROWS * STRIP_ROWS)
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


class WeightSource:
    """Reads one model's weights from its file. Raises ModelFileError for numbers that are not finite."""

    def __init__(self, file: Checkpoint, spec: ModelSpec) -> None:
        self.file = file
        self.spec = spec

    def linears(self) -> list[Linear]:
        """In the order of a forward pass; the head last."""
        spec, width = self.spec, self.spec.heads * self.spec.head_dim
        result = []
        for layer, block in enumerate(spec.blocks):
            result += [
                self._fused(f"qkv.{layer}", (block.q, block.k, block.v), _qkv_order(spec)),
                Linear(f"o.{layer}", (block.o,), spec.hidden, width),
                self._fused(f"gate_up.{layer}", (block.gate, block.up), _gate_up_order(spec.ffn)),
                Linear(f"down.{layer}", (block.down,), spec.hidden, spec.ffn),
            ]
        result.append(Linear("head", (spec.head,), spec.vocab, spec.hidden))
        return result

    def norms(self) -> dict[str, F32]:
        """Norm weights by the executor's names: "attn.{layer}", "ffn.{layer}", "q.{layer}", ..., "final"."""
        names: dict[str, str | None] = {"final": self.spec.final_norm}
        for layer, block in enumerate(self.spec.blocks):
            names |= {
                f"attn.{layer}": block.attn_norm,
                f"ffn.{layer}": block.ffn_norm,
                f"q.{layer}": block.q_norm,
                f"k.{layer}": block.k_norm,
                f"attn_out.{layer}": block.attn_out_norm,
                f"ffn_out.{layer}": block.ffn_out_norm,
            }
        return {name: self._checked_vector(tensor) for name, tensor in names.items() if tensor is not None}

    def biases(self) -> dict[str, F32]:
        """By the names of the linears they belong to, in the order of their rows."""
        found = {}
        for layer, block in enumerate(self.spec.blocks):
            parts = [name for name in (block.q_bias, block.k_bias, block.v_bias) if name is not None]
            if parts:
                joined = np.concatenate([self._checked_vector(name) for name in parts])
                found[f"qkv.{layer}"] = joined[_qkv_order(self.spec)]
        return found

    def rope_tables(self, positions: int) -> list[tuple[F32, F32]]:
        """(cos, sin) [positions, rope dim / 2] of each rope."""
        return [rope.tables(positions, self._rope_factors(rope.factors)) for rope in self.spec.ropes]

    def _rope_factors(self, tensor: str | None) -> F32 | None:
        if tensor is None:
            return None
        factors = self._checked_vector(tensor)
        if not (factors > 0).all():
            raise ModelFileError(f"{self.file.path}: tensor {tensor!r} holds rope factors that are not above 0.")
        return factors

    def is_affine4(self, linear: Linear) -> bool:
        return all(self.type_of(tensor) in AFFINE4 for tensor in linear.tensors)

    def affine4(self, linear: Linear, part: slice = EVERY) -> tuple[U8, F32, F32]:
        """(q [N, K], d, m [N, K/32]) with value = d * q + m, of all its rows or a part of them."""
        return self._read(linear, part, affine4)

    def floats(self, linear: Linear, part: slice = EVERY) -> F32:
        """float32 [N, K], of all its rows or a part of them."""
        return self._read(linear, part, lambda raw, kind: (dequantize(raw, kind),))[0]

    def checked_floats(self, linear: Linear, part: slice = EVERY) -> F32:
        """float32 [N, K], known to be finite (quantization finds out by itself)."""
        return self._finite(" + ".join(linear.tensors), self.floats(linear, part))

    def matrix(self, tensor: str) -> F32:
        return dequantize(self.file.raw(tensor), self.type_of(tensor))

    def embedding_rows(self, ids: npt.NDArray[np.integer]) -> F32:
        """float32 [T, hidden]."""
        tensor = self.spec.embedding
        return dequantize(self.file.raw(tensor)[ids], self.type_of(tensor))

    def calibration_weight(self, name: str) -> F32:
        """The weights that `calibrate` asks for, by its names ("q.3", "q_bias.3", "attn_norm.3", "final_norm")."""
        part, _, layer = name.partition(".")
        if part == "final_norm":
            return self._vector(self.spec.final_norm)
        tensor: str = getattr(self.spec.blocks[int(layer)], part)
        values = self._vector(tensor) if part.endswith(("norm", "bias")) else self.matrix(tensor)
        if part in ("q", "k", "q_bias", "k_bias"):
            return values[_rope_order(self.spec, self.spec.heads if part[0] == "q" else self.spec.kv_heads)]
        return values

    def type_of(self, tensor: str) -> str:
        return self.file.tensors[tensor].type.name

    def _read(self, linear: Linear, part: slice, read: Callable[[U8, str], Arrays]) -> Arrays:
        """What `read` makes of the rows that are stored, in the linear's order."""
        if linear.order is None:
            (tensor,) = linear.tensors
            return read(self.file.raw(tensor)[part], self.type_of(tensor))
        wanted, first, found, places = linear.order[part], 0, [], []
        for tensor in linear.tensors:
            raw = self.file.raw(tensor)
            here = np.flatnonzero((wanted >= first) & (wanted < first + len(raw)))
            if here.size:
                found.append(read(raw[wanted[here] - first], self.type_of(tensor)))
                places.append(here)
            first += len(raw)
        back = np.argsort(np.concatenate(places))
        return tuple(np.concatenate(arrays)[back] for arrays in zip(*found, strict=True))  # type: ignore[return-value]

    def _fused(self, name: str, tensors: tuple[str, ...], order: Order) -> Linear:
        return Linear(name, tensors, len(order), self.spec.hidden, order)

    def _vector(self, tensor: str) -> F32:
        values: F32 = self.matrix(tensor)[0]
        return values

    def _checked_vector(self, tensor: str) -> F32:
        return self._finite(tensor, self._vector(tensor))

    def _finite(self, tensor: str, values: F32) -> F32:
        if not np.isfinite(values).all():
            raise ModelFileError(f"{self.file.path}: tensor {tensor!r} holds NaN or infinity.")
        return np.ascontiguousarray(values)


def _rope_order(spec: ModelSpec, heads: int) -> Order:
    return spec.ropes[0].row_order(heads, spec.head_dim)  # one row order whatever the frequencies


def _qkv_order(spec: ModelSpec) -> Order:
    q, k = _rope_order(spec, spec.heads), _rope_order(spec, spec.kv_heads)
    v = np.arange(len(k))
    return np.concatenate([q, len(q) + k, len(q) + len(k) + v])


def _gate_up_order(ffn: int) -> Order:
    return np.arange(2 * ffn).reshape(2, -1, GATE_UP_ROWS).transpose(1, 0, 2).ravel()
