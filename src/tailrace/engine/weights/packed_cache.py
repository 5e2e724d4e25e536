"""Packed weights on disk: what a load computed once, mapped back in a fraction of a second.

    magic | section, padded to 64 | section | ... | index (JSON) | index length, index CRC-32, magic

One file for each (model file, weights, variant, recipe). Sections are raw arrays, mapped read-only; the index lists
name, dtype, shape, offset and CRC-32 of each, and small facts. Nothing is believed: any mismatch, a flipped bit
included, makes `load` answer None with a log line, and the caller packs again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tailrace.engine.store.atomic import replacing, sweep
from tailrace.frozen import frozen

Array = npt.NDArray[Any]
log = logging.getLogger(__name__)

MAGIC = b"TRPACK01"
ALIGNMENT = 64  # bytes; a cache line and the widest vector
KEPT_RECIPES = 2  # caches of other program versions kept for the same model, weights and variant
_TRAILER = struct.Struct("<QI8s")


@frozen
class CacheKey:
    """What the packed bytes depend on; `recipe` is a digest of the program that computes them."""

    file_sha256: str
    weights: str
    variant: str
    recipe: str

    @property
    def family(self) -> str:
        return f"{self.file_sha256[:16]}-{self.weights}-{self.variant}-"

    @property
    def file_name(self) -> str:
        return f"{self.family}{self.recipe[:12]}.pack"


@frozen
class Packed:
    """Arrays by name, and facts that JSON can hold."""

    arrays: Mapping[str, Array]
    facts: Mapping[str, Any]


class _Section(NamedTuple):
    name: str
    dtype: str
    shape: list[int]
    offset: int
    nbytes: int
    checksum: int


class _Damaged(Exception):
    pass


class PackedCache:
    """The cache in one folder. Several processes may read and write it at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, key: CacheKey) -> Packed | None:
        """The packed weights, verified, as views of a memory map; None when absent or damaged."""
        path = self.folder / key.file_name
        try:
            with path.open("rb") as file:
                with contextlib.suppress(OSError):
                    os.utime(path)  # the most recently used are kept
                return _read(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), key)
        except FileNotFoundError:
            return None
        except (_Damaged, OSError, ValueError, TypeError, KeyError) as error:
            log.warning("packed weights at %s cannot be used (%s); packing again", path, error)
            return None

    def store(self, key: CacheKey, packed: Packed) -> None:
        """Write and rename into place. A folder that cannot be written costs the next start its time, nothing else."""
        path = self.folder / key.file_name
        try:
            with replacing(path) as file:
                _write(file, key, packed)
            sweep(self.folder)
            self._prune(key)
        except OSError as error:
            log.warning("packed weights were not saved to %s (%s); the next start packs again", path, error)

    def _prune(self, key: CacheKey) -> None:
        others = [path for path in self.folder.glob(f"{key.family}*.pack") if path.name != key.file_name]
        others.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in others[KEPT_RECIPES:]:
            path.unlink(missing_ok=True)


def _write(file: IO[bytes], key: CacheKey, packed: Packed) -> None:
    file.write(MAGIC)
    sections = []
    for name, array in packed.arrays.items():
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        file.write(bytes(-file.tell() % ALIGNMENT))
        shape, checksum = list(array.shape), zlib.crc32(data)
        sections.append(_Section(name, array.dtype.str, shape, file.tell(), data.nbytes, checksum))
        file.write(data)
    index = json.dumps({"key": asdict(key), "facts": dict(packed.facts), "sections": sections}).encode()
    file.write(index + _TRAILER.pack(len(index), zlib.crc32(index), MAGIC))


def _read(data: mmap.mmap, key: CacheKey) -> Packed:
    index = _read_index(data)
    if index["key"] != asdict(key):
        raise _Damaged("it was made for something else")
    with ThreadPoolExecutor(max_workers=4) as pool:  # CRC-32 runs without the GIL
        arrays = dict(pool.map(lambda section: _read_section(data, _Section(*section)), index["sections"]))
    return Packed(arrays, index["facts"])


def _read_index(data: mmap.mmap) -> dict[str, Any]:
    if len(data) < len(MAGIC) + _TRAILER.size:
        raise _Damaged(f"only {len(data)} bytes")
    length, checksum, magic = _TRAILER.unpack_from(data, len(data) - _TRAILER.size)
    end = len(data) - _TRAILER.size
    if magic != MAGIC or data[: len(MAGIC)] != MAGIC or length > end:
        raise _Damaged("it is incomplete")
    text = data[end - length : end]
    if zlib.crc32(text) != checksum:
        raise _Damaged("its index has a wrong checksum")
    index: dict[str, Any] = json.loads(text)
    return index


def _read_section(data: mmap.mmap, section: _Section) -> tuple[str, Array]:
    flat = np.frombuffer(data, np.uint8, section.nbytes, section.offset)
    if zlib.crc32(flat.data) != section.checksum:
        raise _Damaged(f"section {section.name!r} has a wrong checksum")
    return section.name, flat.view(np.dtype(section.dtype)).reshape(section.shape)
