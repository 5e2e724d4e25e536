"""Reading GGUF files: the header is parsed and checked, tensor data stays in the memory map.

Owns the file format (versions 2 and 3, little endian): typed metadata, the tensor table, every bound. It opens any
well-formed file, whatever the architecture and tensor types; what can be run is decided in `engine.models`. A header
is never believed: counts and lengths are checked against the bytes that are there before anything is allocated.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tailrace import _native
from tailrace.engine.weights.checkpoint import TensorInfo, TensorType
from tailrace.errors import ModelFileError
from tailrace.text.tokenizer import Tokenizer

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ENTRIES = 1 << 17  # metadata keys, and tensors; the largest known models have a few thousand
MAX_ITEMS = 1 << 23  # array items over all metadata: far above any vocabulary, far below a gigabyte
MAX_DIMS = 4

# Metadata value types: struct codes by GGUF number; 8 is a string, 9 an array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

# fmt: off
_TENSOR_TYPES = {
    0: TensorType("F32", 1, 4), 1: TensorType("F16", 1, 2), 2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20), 6: TensorType("Q5_0", 32, 22), 7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34), 9: TensorType("Q8_1", 32, 40), 10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110), 12: TensorType("Q4_K", 256, 144), 13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210), 15: TensorType("Q8_K", 256, 292), 16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74), 18: TensorType("IQ3_XXS", 256, 98), 19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18), 21: TensorType("IQ3_S", 256, 110), 22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136), 24: TensorType("I8", 1, 1), 25: TensorType("I16", 1, 2),
    26: TensorType("I32", 1, 4), 27: TensorType("I64", 1, 8), 28: TensorType("F64", 1, 8),
    29: TensorType("IQ1_M", 256, 56), 30: TensorType("BF16", 1, 2), 34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66), 39: TensorType("MXFP4", 32, 17),
}
# fmt: on


class GgufFile:
    """An open GGUF file: `metadata` (plain Python values, arrays as lists), `tensors` by name, raw bytes on demand.

    Raises ModelFileError when the file is missing, truncated or not GGUF. The arrays that `raw` returns are views of
    the memory map and keep it alive. A file that is one of several opens too; `split.open_gguf` joins them.
    """

    paired_rope = True

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.files = (self.path,)
        self._map = _open_map(self.path)
        self.size = len(self._map)
        cursor = _Cursor(self._map, self.path)
        self.version, tensor_count, entry_count = _read_preamble(cursor)
        self.metadata: dict[str, Any] = dict(_read_metadata(cursor, entry_count))
        if len(self.metadata) != entry_count:
            raise cursor.error("a metadata key occurs twice")
        self.alignment = _alignment(cursor, self.metadata)
        self.tensors = _read_tensor_table(cursor, tensor_count, self.alignment)
        self._check_size()

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """The stored bytes as uint8 [rows, bytes per row], read-only; a vector is one row."""
        info = self.tensors[name]
        data = np.frombuffer(self._map, np.uint8, info.nbytes, info.offset)
        return data.reshape(prod(info.shape[:-1]), -1)

    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_gguf(self.metadata)

    def _check_size(self) -> None:
        expected = max((info.offset + info.nbytes for info in self.tensors.values()), default=0)
        if expected > self.size:
            raise ModelFileError(
                f"{self.path} is truncated: its header describes {expected} bytes, the file has {self.size} "
                f"({expected - self.size} missing). Fetch it again."
            )


def _open_map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            head = file.read(len(MAGIC))
            if head != MAGIC:
                found = "it is empty" if not head else f"it starts with {head!r} instead of {MAGIC!r}"
                raise ModelFileError(f"{path} is not a GGUF file: {found}.")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise ModelFileError(f"There is no model file at {path}.") from error
    except OSError as error:
        raise ModelFileError(f"The model file {path} cannot be read: {error.strerror}.") from error


class _Cursor:
    """Reads values one after another; every read is checked against the end of the file."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.position = len(MAGIC)
        self.items_left = MAX_ITEMS
        self.reading = "the preamble"

    def error(self, found: str) -> ModelFileError:
        where = f"byte {self.position}, {self.reading}"
        return ModelFileError(f"{self.path} is damaged: {found} ({where}). Fetch it again.")

    def short(self, found: str) -> ModelFileError:
        have = f"the file has {len(self.data)} bytes"
        return ModelFileError(f"{self.path} is truncated or damaged: {self.reading}: {found}; {have}. Fetch it again.")

    def need(self, nbytes: int) -> None:
        left = len(self.data) - self.position
        if nbytes > left:
            raise self.short(f"{nbytes} bytes are needed at byte {self.position}, {left} are left")

    def scalar(self, code: str) -> Any:
        size = struct.calcsize("<" + code)
        self.need(size)
        (value,) = struct.unpack_from("<" + code, self.data, self.position)
        self.position += size
        return value

    def text(self, errors: str = "replace") -> str:
        """A string; names are read with errors="strict"."""
        length = self.scalar("Q")
        self.need(length)
        start = self.position
        self.position += length
        try:
            return self.data[start : self.position].decode("utf-8", errors)
        except UnicodeDecodeError as error:
            raise self.error("a name is not UTF-8") from error

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self.array()
        return self.scalar(self.code(kind))

    def code(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise self.error(f"unknown metadata value type {kind}")
        return _SCALARS[kind]

    def array(self) -> list[Any]:
        kind, count = self.scalar("I"), self.scalar("Q")
        if kind == _ARRAY:
            raise self.error("an array of arrays, which no model description uses")
        if count > self.items_left:
            raise self.error(f"an array of {count} items; at most {MAX_ITEMS} are read from one file")
        self.items_left -= count
        return self.texts(count) if kind == _STRING else self.numbers(self.code(kind), count)

    def numbers(self, code: str, count: int) -> list[Any]:
        dtype = np.dtype(code).newbyteorder("<")
        self.need(count * dtype.itemsize)
        values: list[Any] = np.frombuffer(self.data, dtype, count, self.position).tolist()
        self.position += count * dtype.itemsize
        return values

    def texts(self, count: int) -> list[str]:
        """Native, since a vocabulary and its merges have 100,000 of these."""
        self.need(count * 8)
        values, self.position = _native.read_texts(self.data, self.position, count)
        if len(values) < count:
            raise self.short(f"string {len(values) + 1} of {count} reaches beyond the end of the file")
        return values


def _read_preamble(cursor: _Cursor) -> tuple[int, int, int]:
    version = cursor.scalar("I")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        kind = f"big-endian GGUF version {swapped}" if swapped in VERSIONS else f"GGUF version {version}"
        raise ModelFileError(f"{cursor.path} is {kind}; little-endian versions 2 and 3 can be read. Convert it again.")
    tensor_count, entry_count = cursor.scalar("Q"), cursor.scalar("Q")
    for what, count in (("tensors", tensor_count), ("metadata entries", entry_count)):
        if count > MAX_ENTRIES:
            raise cursor.error(f"it claims {count} {what}; at most {MAX_ENTRIES} are read")
    return version, tensor_count, entry_count


def _read_metadata(cursor: _Cursor, count: int) -> Iterator[tuple[str, Any]]:
    for index in range(count):
        cursor.reading = f"metadata entry {index} of {count}"
        key = cursor.text(errors="strict")
        cursor.reading = f"metadata {key!r}"
        yield key, cursor.value(cursor.scalar("I"))


def _alignment(cursor: _Cursor, metadata: dict[str, Any]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or value <= 0 or value % 8 or value > 1 << 20:
        raise cursor.error(f"general.alignment is {value!r}; it must be a positive multiple of 8")
    return value


def _read_tensor_table(cursor: _Cursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    table: dict[str, TensorInfo] = {}
    for index in range(count):
        cursor.reading = f"tensor {index} of {count}"
        info = _read_tensor_info(cursor, alignment)
        if info.name in table:
            raise cursor.error(f"tensor {info.name!r} occurs twice")
        table[info.name] = info
    data_start = -(-cursor.position // alignment) * alignment
    return {
        name: TensorInfo(name, info.shape, info.type, data_start + info.offset, info.nbytes)
        for name, info in table.items()
    }


def _read_tensor_info(cursor: _Cursor, alignment: int) -> TensorInfo:
    """One row of the table, its offset still relative to the start of the data."""
    name = cursor.text(errors="strict")
    cursor.reading = f"tensor {name!r}"
    dims = cursor.scalar("I")
    if not 1 <= dims <= MAX_DIMS:
        raise cursor.error(f"it has {dims} dimensions; 1 to {MAX_DIMS} are possible")
    shape = tuple(cursor.scalar("Q") for _ in range(dims))[::-1]
    kind, offset = cursor.scalar("I"), cursor.scalar("Q")
    if kind not in _TENSOR_TYPES:
        known = ", ".join(sorted(known.name for known in _TENSOR_TYPES.values()))
        raise ModelFileError(f"{cursor.path}: tensor {name!r} has the unknown type number {kind}; known are {known}.")
    tensor_type = _TENSOR_TYPES[kind]
    if 0 in shape or shape[-1] % tensor_type.block:
        raise cursor.error(f"shape {shape} does not fit type {tensor_type.name} (blocks of {tensor_type.block})")
    if offset % alignment:
        raise cursor.error(f"its offset {offset} is not a multiple of the alignment {alignment}")
    return TensorInfo(name, shape, tensor_type, offset, prod(shape) // tensor_type.block * tensor_type.size)
