"""Matrices are packed by chunks of rows: the same bytes as at once, and little memory beside them."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from tailrace.engine.models.registry import describe
from tailrace.engine.weights import source as source_module
from tailrace.engine.weights.gguf import GgufFile
from tailrace.engine.weights.pack import pack_weights
from tailrace.engine.weights.packed_cache import Packed
from tailrace.engine.weights.source import WeightSource, row_chunks
from tests.tiny import write_tiny_gguf

SHAPE = dict(hidden=256, heads=4, kv_heads=2, ffn=512, vocab=1003, layers=1)


def opened(path: Path) -> WeightSource:
    file = GgufFile(path)
    return WeightSource(file, describe(file))


def packed(source: WeightSource, weights: str) -> Packed:
    return pack_weights(source, weights, "portable", lambda stage, fraction: None, threads=1)


def test_chunks_are_whole_strips_that_cover_every_row() -> None:
    for rows, columns in ((1003, 256), (64, 1 << 22), (1, 32), (262_144, 640)):
        chunks = list(row_chunks(rows, columns))
        assert [row for chunk in chunks for row in (chunk.start, chunk.stop)] == sorted(
            [0, rows, *[chunk.start for chunk in chunks[1:]] * 2]
        )
        assert all(chunk.start % 64 == 0 for chunk in chunks)
    assert len(list(row_chunks(262_144, 640))) == 81


@pytest.mark.parametrize("wtype", ["q4_1", "q4_k", "q8_0", "f16"])
@pytest.mark.parametrize("weights", ["nib4", "int8", "bf16"])
def test_chunks_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wtype: str, weights: str) -> None:
    source = opened(write_tiny_gguf(tmp_path / "tiny.gguf", wtype=wtype, embedding_type=wtype, tied=False, **SHAPE))
    whole = packed(source, weights)
    monkeypatch.setattr(source_module, "CHUNK_VALUES", 64 * 256)
    assert len(list(row_chunks(1003, 256))) == 16
    chunked = packed(source, weights)
    assert chunked.facts == whole.facts
    assert list(chunked.arrays) == list(whole.arrays)
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(chunked.arrays[name], array, err_msg=name)


def test_a_part_of_rows_is_that_part_of_all_rows(tmp_path: Path) -> None:
    source = opened(write_tiny_gguf(tmp_path / "tiny.gguf", wtype="q4_1", **SHAPE))
    for linear in source.linears():
        for part in (slice(0, 64), slice(64, 200), slice(linear.n - 3, linear.n)):
            np.testing.assert_array_equal(source.floats(linear, part), source.floats(linear)[part])
            if source.is_affine4(linear):
                for some, all_rows in zip(source.affine4(linear, part), source.affine4(linear), strict=True):
                    np.testing.assert_array_equal(some, all_rows[part])


@pytest.mark.parametrize(("weights", "kept"), [("int8", 1), ("bf16", 2)])
def test_a_large_head_needs_little_beside_its_packed_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str, kept: int
) -> None:
    """NumPy's memory, which is all of it but the chunk that the native module packs."""
    rows, columns = 40_000, 128
    source = opened(write_tiny_gguf(tmp_path / "tiny.gguf", wtype="q8_0", hidden=columns, vocab=rows, layers=1))
    monkeypatch.setattr(source_module, "CHUNK_VALUES", 1 << 18)
    source.file.tokenizer()
    tracemalloc.start()
    try:
        packed(source, weights)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    result = rows * columns * kept
    assert peak - result < rows * columns * 4 / 2, "the head was expanded to float32"
