"""What an architecture is to the executor: dimensions, rope, and which tensor plays which part.

Owns the checks that every architecture shares: dimensions the executor can run, tensors present with the right
shapes and readable types, none left over that would silently be ignored. Knows no model by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tailrace.engine.weights.checkpoint import Checkpoint
from tailrace.engine.weights.dequant import DEQUANTIZABLE
from tailrace.errors import ModelFileError

F32 = npt.NDArray[np.float32]

MAX_CONTEXT = 1 << 20  # tokens; the rope tables are computed for all of them


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding (Su et al., 2021, arXiv:2104.09864) of the first `dim` values of each head.

    `linear` divides positions (position interpolation, Chen et al., 2023, arXiv:2306.15595). `factors` names a tensor
    [dim / 2] that divides each frequency. `interleaved`: the file stores rows as pairs (2i, 2i+1), the executor
    rotates pairs (i, i + dim/2), so query and key rows are reordered at load.
    """

    theta: float
    dim: int
    linear: float = 1.0
    factors: str | None = None
    interleaved: bool = False

    def tables(self, positions: int, factors: F32 | None = None) -> tuple[F32, F32]:
        """(cos, sin) [positions, dim / 2], computed in float64."""
        frequency = self.theta ** (-np.arange(0, self.dim, 2) / self.dim) / self.linear
        if factors is not None:
            frequency = frequency / factors
        angle = np.outer(np.arange(positions), frequency)
        return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)

    def row_order(self, heads: int, head_dim: int) -> npt.NDArray[np.intp]:
        """Stored row for each row the executor wants, over `heads` heads: `w = stored[order]`."""
        within = np.arange(head_dim)
        if self.interleaved:
            within[: self.dim] = within[: self.dim].reshape(-1, 2).T.ravel()
        return (np.arange(heads)[:, None] * head_dim + within).ravel()


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """Tensor names of one decoder layer: pre-norm attention, then a pre-norm gated feed-forward (SwiGLU)."""

    attn_norm: str
    q: str
    k: str
    v: str
    o: str
    ffn_norm: str
    gate: str
    up: str
    down: str


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The declaration of one model. `head` is the embedding's tensor when the two are tied."""

    architecture: str
    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int
    norm_eps: float
    rope: Rope
    embedding: str
    final_norm: str
    head: str
    blocks: tuple[LayerTensors, ...]

    @property
    def tied(self) -> bool:
        return self.head == self.embedding

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor the executor needs, with its shape in NumPy order."""
        q_rows, kv_rows = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            self.embedding: (self.vocab, self.hidden),
            self.head: (self.vocab, self.hidden),
            self.final_norm: (self.hidden,),
        }
        if self.rope.factors is not None:
            shapes[self.rope.factors] = (self.rope.dim // 2,)
        for block in self.blocks:
            shapes |= {
                block.attn_norm: (self.hidden,),
                block.q: (q_rows, self.hidden),
                block.k: (kv_rows, self.hidden),
                block.v: (kv_rows, self.hidden),
                block.o: (self.hidden, q_rows),
                block.ffn_norm: (self.hidden,),
                block.gate: (self.ffn, self.hidden),
                block.up: (self.ffn, self.hidden),
                block.down: (self.hidden, self.ffn),
            }
        return shapes


class Metadata:
    """Typed reads from a file's metadata; a missing or odd value is an error that names the key."""

    def __init__(self, file: Checkpoint) -> None:
        self.file = file
        self.values: Mapping[str, Any] = file.metadata

    def error(self, found: str) -> ModelFileError:
        return ModelFileError(f"{self.file.path}: {found}")

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number above zero."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
            raise self.error(f"metadata {key!r} is {value!r}; a whole number above 0 is needed.")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self.error(f"metadata {key!r} is {value!r}; a number above 0 is needed.")
        return float(value)

    def text(self, key: str, default: str) -> str:
        value = self.values.get(key, default)
        if not isinstance(value, str):
            raise self.error(f"metadata {key!r} is {value!r}; text is needed.")
        return value


def check_dimensions(spec: ModelSpec, metadata: Metadata) -> None:
    """Refuse what the executor's tiles cannot hold."""
    multiples = (
        ("hidden size", spec.hidden, 64),
        ("feed-forward size", spec.ffn, 64),
        ("head size", spec.head_dim, 32),
        ("width of all query heads", spec.heads * spec.head_dim, 64),
    )
    for what, value, multiple in multiples:
        if value % multiple:
            raise metadata.error(f"the {what} is {value}; the executor needs a multiple of {multiple}.")
    if spec.heads % spec.kv_heads:
        raise metadata.error(f"{spec.heads} query heads do not share {spec.kv_heads} key heads evenly.")
    if spec.context > MAX_CONTEXT:
        raise metadata.error(f"its context is {spec.context} tokens; up to {MAX_CONTEXT} can be run.")
    if spec.rope.dim % 2 or spec.rope.dim > spec.head_dim:
        raise metadata.error(f"rope covers {spec.rope.dim} values; an even number up to {spec.head_dim} is needed.")


def check_tensors(spec: ModelSpec, metadata: Metadata, ignored: tuple[str, ...] = ()) -> None:
    """Refuse missing, misshapen, unreadable and unexpected tensors; `ignored` lists name endings without effect."""
    found = metadata.file.tensors
    expected = spec.tensor_shapes()
    for name, shape in expected.items():
        if name not in found:
            raise metadata.error(f"tensor {name!r} is missing; a {spec.architecture} model has it.")
        if found[name].shape != shape:
            raise metadata.error(
                f"tensor {found[name].name!r} has shape {found[name].shape}; the metadata says {shape}."
            )
        if found[name].type.name not in DEQUANTIZABLE:
            raise metadata.error(
                f"tensor {found[name].name!r} has type {found[name].type.name}; readable types are "
                f"{', '.join(DEQUANTIZABLE)}. Use a Q4_1, Q4_0, Q8_0, F16 or BF16 version of this model."
            )
    extra = [name for name in found if name not in expected and not name.endswith(ignored)]
    if extra:
        raise metadata.error(
            f"it has {len(extra)} tensor(s) that a plain {spec.architecture} model does not, such as {extra[0]!r}; "
            "leaving them out would give wrong answers."
        )
