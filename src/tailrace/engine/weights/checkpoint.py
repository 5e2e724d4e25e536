"""What every model file format offers, so that nothing else has to know which one it reads.

Names of tensors and metadata are GGUF's, whatever the format: a reader of another one translates. Numbers are not
touched: `raw` gives the stored bytes and `tensors` says their type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from tailrace.engine.weights.blocks import U8
from tailrace.errors import ModelFileError
from tailrace.frozen import frozen
from tailrace.text.tokenizer import Tokenizer


@frozen
class TensorType:
    """How a tensor is stored: `block` values take `size` bytes."""

    name: str
    block: int
    size: int


@frozen
class TensorInfo:
    """One tensor. `name` is the file's own; `shape` is in NumPy order (a matrix is [outputs, inputs]); `offset` is
    absolute in its file."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int
    nbytes: int


class Checkpoint(Protocol):
    """An open model. Opening raises ModelFileError for anything that is missing, damaged or not of the format."""

    @property
    def path(self) -> Path:
        """What messages call the model."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file whose content decides what the model computes, in a fixed order."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """GGUF keys and plain Python values; arrays are lists."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    @property
    def paired_rope(self) -> bool:
        """Whether llama-family query and key rows are stored as rotated pairs (2i, 2i+1), as GGUF does, and not as
        halves (i, i + dim/2)."""

    def raw(self, name: str) -> U8:
        """The stored bytes as uint8 [rows, bytes per row], read-only; a vector is one row."""

    def tokenizer(self) -> Tokenizer:
        """Raises ModelFileError for a kind of tokenizer that is not known."""


def read_json(path: Path, limit: int) -> dict[str, Any]:
    """A JSON object of at most `limit` bytes. Raises ModelFileError."""
    try:
        size = path.stat().st_size
        if size > limit:
            raise ModelFileError(f"{path} has {size} bytes; at most {limit} are read.")
        return parse_json(path.read_bytes(), str(path))
    except FileNotFoundError as error:
        raise ModelFileError(f"There is no {path.name} in {path.parent}.") from error
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}.") from error


def parse_json(data: bytes, where: str) -> dict[str, Any]:
    """Raises ModelFileError for what is not one JSON object, with every key once."""
    try:
        value = json.loads(data, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{where} is damaged: it is not valid JSON ({error}).") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{where} is damaged: it is a JSON {type(value).__name__}, not an object.")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key!r} occurs twice")
        found[key] = value
    return found
