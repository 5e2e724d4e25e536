"""One model in several GGUF files: `name-00001-of-00003.gguf` and so on, found from any of them.

The first part has the metadata; each has a share of the tensors, with the offsets of its own file. Owns that all parts
are there, agree with each other and are in their places; a single part is `gguf`'s affair.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tailrace.engine.weights.checkpoint import TensorInfo
from tailrace.engine.weights.file_names import part_paths
from tailrace.engine.weights.gguf import GgufFile
from tailrace.errors import ModelFileError
from tailrace.text.tokenizer import Tokenizer


def open_gguf(path: Path) -> GgufFile | SplitGguf:
    """The model that `path` is, or is a part of. Raises ModelFileError."""
    file = GgufFile(path)
    count = file.metadata.get("split.count", 1)
    if not isinstance(count, int) or count < 0:
        raise ModelFileError(f"{path}: metadata 'split.count' is {count!r}; a whole number is needed.")
    return file if count < 2 else SplitGguf(file, count)


class SplitGguf:
    """A model whose tensors lie in several files; what `GgufFile` offers, over all of them."""

    paired_rope = True

    def __init__(self, part: GgufFile, count: int) -> None:
        paths = part_paths(part.path)
        if len(paths) != count or part.path not in paths:
            raise ModelFileError(
                f"{part.path} says it is one of {count} parts, so its name should end in -0000K-of-{count:05}.gguf,"
                " by which the others are found. Give the parts the names that they were published with."
            )
        missing = [path for path in paths if not path.is_file()]
        if missing:
            names = ", ".join(path.name for path in missing[:5])
            raise ModelFileError(
                f"{len(missing)} of the {count} parts of this model are missing beside {part.path}: {names}."
                " Fetch them."
            )
        self.path = paths[0]
        self.files = tuple(paths)
        parts = [part if path == part.path else GgufFile(path) for path in paths]
        self.metadata: dict[str, Any] = parts[0].metadata
        self.tensors: dict[str, TensorInfo] = {}
        self._home: dict[str, GgufFile] = {}
        for number, file in enumerate(parts):
            self._add(file, number, count)
        self._check_count()

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        return self._home[name].raw(name)

    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_gguf(self.metadata)

    def _add(self, file: GgufFile, number: int, count: int) -> None:
        found = (file.metadata.get("split.no"), file.metadata.get("split.count"))
        if found != (number, count):
            raise ModelFileError(
                f"{file.path} is part {found[0]!r} of {found[1]!r} by its metadata (counted from 0); by its name it is "
                f"part {number} of {count}. Fetch it again."
            )
        twice = self.tensors.keys() & file.tensors.keys()
        if twice:
            raise ModelFileError(f"{file.path}: tensor {min(twice)!r} is in an earlier part of the model too.")
        self.tensors |= file.tensors
        self._home |= dict.fromkeys(file.tensors, file)

    def _check_count(self) -> None:
        expected = self.metadata.get("split.tensors.count", len(self.tensors))
        if expected != len(self.tensors):
            raise ModelFileError(
                f"{self.path}: the parts hold {len(self.tensors)} tensors together; the first says {expected!r}. "
                "They are not of one model, or damaged. Fetch them again."
            )
