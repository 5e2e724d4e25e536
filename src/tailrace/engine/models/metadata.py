"""Typed reads from a checkpoint's metadata. A missing or odd value is an error that names the key and the value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.engine.weights.checkpoint import Checkpoint
from tailrace.errors import ModelFileError
from tailrace.types import Pooling

_POOLINGS = {0: Pooling.MEAN, 1: Pooling.MEAN, 2: Pooling.FIRST, 3: Pooling.LAST}  # 0: none is stated


class Metadata:
    """Keys are an architecture's own ("block_count"); `values` has every key under its full name."""

    def __init__(self, file: Checkpoint, architecture: str) -> None:
        self.file = file
        self.architecture = architecture
        self.values: Mapping[str, Any] = file.metadata

    def error(self, found: str) -> ModelFileError:
        return ModelFileError(f"{self.file.path}: {found}")

    def has(self, key: str) -> bool:
        return self._name(key) in self.values

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number above zero."""
        value = self.values.get(self._name(key), default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
            raise self.error(f"metadata {self._name(key)!r} is {value!r}; a whole number above 0 is needed.")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self.values.get(self._name(key), default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self.error(f"metadata {self._name(key)!r} is {value!r}; a number above 0 is needed.")
        return float(value)

    def cap(self, key: str) -> float:
        """A finite number above zero, or 0 where there is none."""
        return self.number(key) if self.has(key) else 0.0

    def pooling(self) -> Pooling:
        """What the model was trained for, where it says so; the mean, of which every token is a part, where not."""
        value = self.values.get(self._name("pooling_type"), 1)
        if value not in _POOLINGS:
            raise self.error(f"metadata {self._name('pooling_type')!r} is {value!r}; {sorted(_POOLINGS)} can be used.")
        return _POOLINGS[value]

    def text(self, key: str, default: str) -> str:
        value = self.values.get(self._name(key), default)
        if not isinstance(value, str):
            raise self.error(f"metadata {self._name(key)!r} is {value!r}; text is needed.")
        return value

    def _name(self, key: str) -> str:
        return key if key.startswith("general.") else f"{self.architecture}.{key}"
