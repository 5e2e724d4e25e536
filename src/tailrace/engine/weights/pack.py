"""From a model file to packed weights: calibrate, quantize, pack, one matrix at a time.

The numbers are the canonical ones of quantize.py; how they lie in memory is the native variant's choice and never
changes a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tailrace import _native
from tailrace.engine.weights.calibrate import calibrate, quiet
from tailrace.engine.weights.calibration_text import CALIBRATION_TEXT
from tailrace.engine.weights.packed_cache import Packed
from tailrace.engine.weights.quantize import quantize_affine4, quantize_rows, round_bf16
from tailrace.engine.weights.source import Linear, WeightSource, row_chunks
from tailrace.errors import ModelFileError
from tailrace.text.tokenizer import Tokenizer
from tailrace.types import Tokens

Array = npt.NDArray[Any]
Wide = npt.NDArray[np.int32]  # the 16-bit input channels of a linear, ascending
Parts = tuple[str, dict[str, Array]]  # a linear's format and its arrays
Progress = Callable[[str, float], None]

CALIBRATION_TOKENS = 256  # at most: outliers show early, and vocabularies of single bytes make long texts
EMBEDDING = "embedding"
# Embedding rows are used as the file stores them where the executor can read that; others are rounded to bf16.
STORED_EMBEDDINGS = {"Q8_0": "q8_0", "F16": "f16", "BF16": "bf16", "F32": "f32"}


def pack_weights(source: WeightSource, weights: str, variant: str, progress: Progress, *, threads: int = 1) -> Packed:
    """All linears packed for `variant`. `weights` is the storage: "nib4" (4-bit sources; others int8), "int8", "bf16".

    Arrays "{linear}.packed", "{linear}.scale", "{linear}.wide" (and "embedding" when its rows had to be converted);
    facts "formats": linear -> format. `threads` of them are worked on at once. Raises ModelFileError for weights that
    are not finite.
    """
    wide = {} if weights == "bf16" else _calibrated(source, progress, threads)
    arrays: dict[str, Array] = {}
    formats: dict[str, str] = {}
    pack = partial(_pack_linear, source, weights, variant, wide)
    for linear, (fmt, parts) in _packed(source.linears(), pack, threads, progress):
        formats[linear.name] = fmt
        arrays |= {f"{linear.name}.{part}": array for part, array in parts.items()}
    arrays |= _embedding(source)
    progress("packing weights", 1.0)
    return Packed(arrays, {"formats": formats})


def _packed(
    linears: list[Linear], pack: Callable[[Linear], Parts], threads: int, progress: Progress
) -> Iterator[tuple[Linear, Parts]]:
    """In order; numpy and the native packing run without the interpreter's lock."""
    with ThreadPoolExecutor(threads) as pool:
        for index, (linear, parts) in enumerate(zip(linears, pool.map(pack, linears), strict=True)):
            progress("packing weights", index / len(linears))
            yield linear, parts


def calibration_tokens(tokenizer: Tokenizer, vocab: int) -> Tokens:
    """The calibration text's ids behind the start token, whose channels are often the largest of all."""
    ids = tokenizer.encode(CALIBRATION_TEXT, add_special=False, parse_special=False)
    if tokenizer.bos_id is not None:
        ids = np.concatenate([np.array([tokenizer.bos_id], np.int32), ids])
    return ids[ids < vocab][:CALIBRATION_TOKENS]


@quiet()
def _calibrated(source: WeightSource, progress: Progress, threads: int) -> dict[str, Wide]:
    spec = source.spec
    ids = calibration_tokens(source.file.tokenizer(), spec.vocab)[: spec.context]
    embedded = source.embedding_rows(ids) * np.float32(spec.embedding_scale)

    def weight(name: str) -> npt.NDArray[np.float32]:
        layer = name.partition(".")[2]
        progress("calibrating", int(layer) / spec.layers if layer else 1.0)
        return source.calibration_weight(name)

    return calibrate(spec, embedded, source.rope_tables(len(ids)), weight, threads=threads)


@quiet()
def _embedding(source: WeightSource) -> dict[str, Array]:
    """Rows that the executor cannot read as stored. All are checked; those of a tied head have been."""
    stored = source.type_of(source.spec.embedding) in STORED_EMBEDDINGS
    if stored and source.spec.tied:
        return {}
    spec = source.spec
    whole = Linear(EMBEDDING, (spec.embedding,), spec.vocab, spec.hidden)
    bits = np.empty((0 if stored else spec.vocab, spec.hidden), np.uint16)
    for part in row_chunks(spec.vocab, spec.hidden):
        rows = source.checked_floats(whole, part)
        if not stored:
            bits[part] = round_bf16(rows)
    return {} if stored else {EMBEDDING: bits}


@quiet()
def _pack_linear(source: WeightSource, weights: str, variant: str, wide: Mapping[str, Wide], linear: Linear) -> Parts:
    """By chunks of rows, so that next to the result there is little at any time. An error names the tensors."""
    chunks = list(row_chunks(linear.n, linear.k))
    if weights == "bf16":
        bits = (round_bf16(source.checked_floats(linear, part)) for part in chunks)
        return "bf16", {"packed": _strung((_native.pack_bf16(variant, rows) for rows in bits), len(chunks))}
    affine = source.is_affine4(linear)
    fmt = "nib4" if affine and weights == "nib4" else "int8"
    scale = np.empty(linear.n, np.float32)

    def pack(part: slice) -> Array:
        packed, scale[part] = _pack_rows(source, linear, part, fmt=fmt, variant=variant, wide=wide[linear.name])
        return packed

    try:
        packed = _strung(map(pack, chunks), len(chunks))
    except ModelFileError as error:
        raise ModelFileError(f"{source.file.path}: {' + '.join(linear.tensors)}: {error.message}.") from error
    return fmt, {"packed": packed, "scale": scale, "wide": wide[linear.name]}


def _pack_rows(
    source: WeightSource, linear: Linear, part: slice, *, fmt: str, variant: str, wide: Wide
) -> tuple[Array, Array]:
    """(packed, one scale a row) of a part of the rows."""
    if not source.is_affine4(linear):
        rows = quantize_rows(source.floats(linear, part), part.start)
    else:
        affine = quantize_affine4(*source.affine4(linear, part), part.start)
        if fmt == "nib4":
            return _native.pack_nib4(variant, affine.q, affine.a, affine.b, wide), affine.scale
        rows = affine.to_int8()
    return _native.pack_int8(variant, rows.w8, wide), rows.scale


def _strung(chunks: Iterable[Array], count: int) -> Array:
    """Packed chunks one after another. None is larger than the first, so there is room; what stays unused is never
    touched, and costs nothing."""
    whole, used = np.empty(0, np.uint8), 0
    for chunk in chunks:
        if not used:
            whole = np.empty(count * chunk.nbytes, np.uint8)
        whole[used : used + chunk.nbytes] = chunk
        used += chunk.nbytes
    return whole[:used]
