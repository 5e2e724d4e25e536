"""Reading safetensors files: the header is parsed and checked, tensor data stays in the memory map.

    header length (8 bytes, little endian) | header (JSON) | data

The header maps each tensor's name to dtype, shape and the range of its bytes in the data. Owns the file format: every
length and range is checked against the bytes that are there before anything is allocated, and the ranges must cover
the data without gaps or overlaps. What a folder of such files means is `safetensors_folder`'s affair.
"""

from __future__ import annotations

import mmap
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tailrace.engine.weights.checkpoint import TensorInfo, TensorType, parse_json
from tailrace.errors import ModelFileError

MAX_HEADER = 1 << 24  # bytes of JSON; a tensor takes about 120
MAX_DIMS = 8
_LENGTH = 8  # bytes of the header's length
_METADATA = "__metadata__"  # the one key that is no tensor

# fmt: off
_TENSOR_TYPES = {
    kind.name: kind for kind in (
        TensorType("F64", 1, 8), TensorType("F32", 1, 4), TensorType("F16", 1, 2), TensorType("BF16", 1, 2),
        TensorType("F8_E4M3", 1, 1), TensorType("F8_E5M2", 1, 1), TensorType("F8_E8M0", 1, 1),
        TensorType("I64", 1, 8), TensorType("I32", 1, 4), TensorType("I16", 1, 2), TensorType("I8", 1, 1),
        TensorType("U64", 1, 8), TensorType("U32", 1, 4), TensorType("U16", 1, 2), TensorType("U8", 1, 1),
        TensorType("BOOL", 1, 1),
    )
}
# fmt: on


class SafetensorsFile:
    """An open file: `tensors` by name, raw bytes on demand. Raises ModelFileError when it is missing, truncated or not
    safetensors. The arrays that `raw` returns are views of the memory map and keep it alive."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = _open_map(path)
        self.size = len(self._map)
        length = int.from_bytes(self._map[:_LENGTH], "little")
        self._start = _LENGTH + length
        self._check_header(length)
        header = parse_json(self._map[_LENGTH : self._start], f"{path}: its header")
        header.pop(_METADATA, None)
        self.tensors = {name: self._info(name, entry) for name, entry in header.items()}
        self._check_ranges()

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """The stored bytes as uint8 [rows, bytes per row], read-only; a vector is one row."""
        info = self.tensors[name]
        data = np.frombuffer(self._map, np.uint8, info.nbytes, info.offset)
        return data.reshape(prod(info.shape[:-1]), -1)

    def _check_header(self, length: int) -> None:
        if length > MAX_HEADER:
            raise self._error(
                f"its first 8 bytes claim a header of {length} bytes; at most {MAX_HEADER} are read, so it is not a "
                "safetensors file or it is damaged"
            )
        if self._start > self.size:
            raise self._truncated(self._start)
        if self._map[_LENGTH : _LENGTH + 1] != b"{":
            raise self._error("it is not a safetensors file: its header does not start with '{'")

    def _info(self, name: str, entry: Any) -> TensorInfo:
        if not isinstance(entry, dict):
            raise self._error(f"tensor {name!r} is described by {type(entry).__name__}")
        kind: Any = entry.get("dtype")
        shape: Any = entry.get("shape")
        offsets: Any = entry.get("data_offsets")
        if not isinstance(kind, str) or kind not in _TENSOR_TYPES:
            raise ModelFileError(
                f"{self.path}: tensor {name!r} has the unknown type {kind!r:.40}; known are {', '.join(_TENSOR_TYPES)}."
            )
        if not _are_sizes(shape) or len(shape) > MAX_DIMS:
            raise self._error(f"the shape of tensor {name!r} is {shape!r:.80}")
        if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            raise self._error(f"the range of tensor {name!r} is {offsets!r:.80}")
        nbytes = prod(shape) * _TENSOR_TYPES[kind].size
        if offsets[1] - offsets[0] != nbytes:
            raise self._error(
                f"tensor {name!r} of shape {tuple(shape)} and type {kind} takes {nbytes} bytes; its range has "
                f"{offsets[1] - offsets[0]}"
            )
        return TensorInfo(name, tuple(shape), _TENSOR_TYPES[kind], self._start + offsets[0], nbytes)

    def _check_ranges(self) -> None:
        end = self._start
        for info in sorted(self.tensors.values(), key=lambda info: (info.offset, info.nbytes)):
            if info.offset != end:
                raise self._error(f"the bytes of tensor {info.name!r} do not start where those before it end")
            end += info.nbytes
        if end > self.size:
            raise self._truncated(end)
        if end < self.size:
            raise self._error(f"{self.size - end} bytes at its end belong to no tensor")

    def _truncated(self, expected: int) -> ModelFileError:
        return ModelFileError(
            f"{self.path} is truncated: its header describes {expected} bytes, the file has {self.size} "
            f"({expected - self.size} missing). Fetch it again."
        )

    def _error(self, found: str) -> ModelFileError:
        return ModelFileError(f"{self.path} is damaged: {found}. Fetch it again.")


def _open_map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            if len(file.read(_LENGTH)) < _LENGTH:
                raise ModelFileError(f"{path} is not a safetensors file: it has fewer than {_LENGTH} bytes.")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise ModelFileError(f"There is no model file at {path}.") from error
    except OSError as error:
        raise ModelFileError(f"The model file {path} cannot be read: {error.strerror}.") from error


def _are_sizes(value: Any) -> bool:
    """A list of whole numbers that a file may have."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)
