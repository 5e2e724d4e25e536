"""A GGUF file read the slow, plain way: through the `gguf` package, independent of the engine's own reader."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, models, pre_tokenizers

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Groups4:
    """4-bit groups of 32: w = d * q + m."""

    q: npt.NDArray[np.uint8]
    d: F32
    m: F32


class Reader(gguf.GGUFReader):
    """The package's own makes views of every item of an array: of a vocabulary, in more time than all else takes."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        if raw_type != gguf.GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        item, count = struct.unpack_from("<IQ", self.data, orig_offs)
        types, end = [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType(item)], orig_offs + 12
        scalar = self.gguf_scalar_to_np.get(types[1])
        if scalar is not None:
            values = np.frombuffer(self.data, scalar, count, end)
            return end + values.nbytes - orig_offs, [values], [0], types
        parts = []
        for _ in range(count):
            (length,) = struct.unpack_from("<Q", self.data, end)
            parts.append(np.frombuffer(self.data, np.uint8, length, end + 8))
            end += 8 + length
        return end - orig_offs, parts, list(range(count)), types


class GgufFile:
    def __init__(self, path: str | Path) -> None:
        self._reader = Reader(str(path))
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self.architecture = self.value("general.architecture")

    def value(self, key: str, default=None):
        """A metadata value; "%s.x" names the architecture's own key."""
        field = self._reader.get_field(key.replace("%s", getattr(self, "architecture", "")))
        return default if field is None else field.contents()

    def has(self, name: str) -> bool:
        return name in self._tensors

    def type_name(self, name: str) -> str:
        return self._tensors[name].tensor_type.name

    def tensor(self, name: str) -> F32:
        """Float32, with the shape NumPy expects: [rows, columns]."""
        tensor = self._tensors[name]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        return np.ascontiguousarray(values, np.float32).reshape(tensor.shape[::-1].tolist())

    def groups4(self, name: str) -> Groups4 | None:
        """The 4-bit groups of a Q4_0 or Q4_1 tensor as stored; None for another type."""
        kind = self.type_name(name)
        if kind not in ("Q4_0", "Q4_1"):
            return None
        columns, rows = self._tensors[name].shape.tolist()
        header = 4 if kind == "Q4_1" else 2  # bytes before the nibbles: d, or d and m
        blocks = self._tensors[name].data.reshape(rows, columns // 32, header + 16)
        halves = np.ascontiguousarray(blocks[..., :header]).view(np.float16).astype(np.float32)
        nibbles = np.concatenate([blocks[..., header:] & 15, blocks[..., header:] >> 4], axis=-1)
        d = halves[..., 0]
        m = halves[..., 1] if kind == "Q4_1" else -8 * d
        return Groups4(nibbles.reshape(rows, columns), d, m)

    def byte_bpe(self) -> Tokenizer:
        """The byte-level BPE of a file whose pre-tokenizer is "smollm": single digits, then GPT-2's pattern."""
        tokens, merges = self.value("tokenizer.ggml.tokens"), self.value("tokenizer.ggml.merges")
        pairs = [tuple(merge.split(" ", 1)) for merge in merges]
        tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, pairs))
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
        return tokenizer
