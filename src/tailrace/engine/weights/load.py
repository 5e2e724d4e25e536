"""From a model file to a model that is ready for `forward`: check, find or make the packed weights, hand them over.

A warm start maps the packed cache; a cold one calibrates and quantizes first and leaves the cache behind. Owns the
choice of variant and storage; refuses names that this machine or this file cannot serve.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tailrace import _native
from tailrace.engine.cpus import engine_threads
from tailrace.engine.models.base import ModelSpec
from tailrace.engine.models.bert import EncoderSpec
from tailrace.engine.models.registry import describe
from tailrace.engine.store.digest import remembered_sha256, sha256_file, sha256_files
from tailrace.engine.weights.checkpoint import Checkpoint
from tailrace.engine.weights.encoder import EncoderSource, source_of
from tailrace.engine.weights.even_keys import even_keys
from tailrace.engine.weights.open import open_checkpoint
from tailrace.engine.weights.pack import EMBEDDING, STORED_EMBEDDINGS, Progress, pack_weights
from tailrace.engine.weights.packed_cache import CacheKey, Packed, PackedCache
from tailrace.engine.weights.source import WeightSource
from tailrace.errors import ConfigError
from tailrace.frozen import frozen

WEIGHTS = ("auto", "int8", "bf16")


@frozen
class LoadedModel:
    """A native model, every part set, and what is known about it.

    `checkpoint` is what it was read from, `metadata` that one's (template, ...). `weights` is how 4-bit sources are
    stored: "nib4", "int8" or "bf16"; `bytes_by_format` counts the memory of matrices and embedding by format.
    """

    model: _native.Model
    team: _native.Team
    checkpoint: Checkpoint
    spec: ModelSpec
    native_spec: _native.ModelSpec
    metadata: Mapping[str, Any]
    path: Path
    file_sha256: str
    variant: str
    weights: str
    max_context: int
    bytes_by_format: Mapping[str, int]
    from_cache: bool


def load_model(
    path: str | Path,
    *,
    weights: str = "auto",
    isa: str = "auto",
    threads: int = 0,
    max_context: int = 0,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    team: _native.Team | None = None,
) -> LoadedModel:
    """Load a GGUF file (or one that is split, by any of its parts) or a folder with safetensors.

    `weights` auto, int8 or bf16; `isa` auto or a variant's name; `threads` 0: one a usable core; `max_context` 0:
    the model's own; `cache_dir` None: nothing is read from or left on disk. `progress(stage, fraction)` hears how far a
    cold start is; `team` runs the model in the place of `threads` new ones. Raises ModelFileError for a file that
    cannot be used and ConfigError for an option that cannot.
    """
    variant = _variant(isa)
    file = open_checkpoint(path)
    spec = describe(file)
    storage = _storage(weights, variant, spec)
    max_context = _context(max_context, spec)
    if threads < 0:
        raise ConfigError(f"threads is {threads}; use 0 for one on each usable core.", param="threads")
    source = source_of(file, spec)
    threads = threads or engine_threads() if team is None else team.threads
    progress = progress or _silent
    progress("checking the file", 0.0)
    pack = partial(pack_weights, source, storage, variant, progress, threads=threads)
    sha256, packed, from_cache = _packed(file.files, storage, variant, cache_dir, pack)
    team = team or _native.Team(threads)
    native_spec = _native_spec(spec, max_context)
    model = _native.Model(variant, native_spec, team)
    sizes = _set_parts(model, source, packed, max_context)
    return LoadedModel(
        model=model,
        team=team,
        checkpoint=file,
        spec=spec,
        native_spec=native_spec,
        metadata=file.metadata,
        path=file.path,
        file_sha256=sha256,
        variant=variant,
        weights=storage,
        max_context=max_context,
        bytes_by_format=sizes,
        from_cache=from_cache,
    )


def _silent(stage: str, fraction: float) -> None:
    pass


def _variant(isa: str) -> str:
    if isa == "auto":
        return _native.variants()[0]
    if isa not in _native.test_variants():
        available = ", ".join(_native.variants())
        raise ConfigError(f"isa {isa!r} does not run on this CPU; available: auto, {available}.", param="isa")
    return isa


def _storage(weights: str, variant: str, spec: ModelSpec) -> str:
    if weights not in WEIGHTS:
        raise ConfigError(f"weights {weights!r} is unknown; it is one of {', '.join(WEIGHTS)}.", param="weights")
    if isinstance(spec, EncoderSpec):  # small, and rounding it to 8 bits would move vectors by as much as texts differ
        return "bf16"
    return _native.preferred_format(variant, "affine4") if weights == "auto" else weights


def _context(asked: int, spec: ModelSpec) -> int:
    if not 0 <= asked <= spec.context:
        raise ConfigError(
            f"max_context {asked} is beyond the model's {spec.context} tokens; use 0 to {spec.context}.",
            param="max_context",
        )
    return asked or spec.context


def _packed(
    files: Sequence[Path], weights: str, variant: str, folder: Path | None, pack: Callable[[], Packed]
) -> tuple[str, Packed, bool]:
    """(SHA-256 of the files, packed weights, whether they came from the cache)."""
    if folder is None:
        return sha256_files(files, sha256_file), pack(), False
    sha256 = sha256_files(files, partial(remembered_sha256, folder=folder / "digests"))
    cache = PackedCache(folder / "packed")
    key = CacheKey(sha256, weights, variant, recipe())
    found = cache.load(key)
    if found is not None:
        return sha256, found, True
    packed = pack()
    cache.store(key, packed)
    return sha256, cache.load(key) or packed, False


def recipe() -> str:
    """A digest of what decides packed bytes: the native module, this package's source and the declarations'.

    Computed instead of numbered, so that no change can forget to invalidate the cache.
    """
    digest = hashlib.sha256()
    assert _native.__file__ is not None
    engine = Path(__file__).parents[1]
    for path in [Path(_native.__file__), *sorted(engine.glob("weights/*.py")), *sorted(engine.glob("models/*.py"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _native_spec(spec: ModelSpec, max_context: int) -> _native.ModelSpec:
    sizes: _native.ModelSpec = {
        "layers": spec.layers,
        "hidden": spec.hidden,
        "heads": spec.heads,
        "kv_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "ffn": spec.ffn,
        "vocab": spec.vocab,
        "norm_eps": spec.norm_eps,
        "max_positions": max_context,
    }
    if isinstance(spec, EncoderSpec):
        return {**sizes, "encoder": True}
    return {
        **sizes,
        "activation": spec.activation,
        "embedding_scale": spec.embedding_scale,
        "attention_scale": spec.attention_scale,
        "attention_softcap": spec.attention_softcap,
        "logit_softcap": spec.logit_softcap,
        "windows": [block.window for block in spec.blocks],
        "ropes": [block.rope for block in spec.blocks],
    }


def _set_parts(model: _native.Model, source: WeightSource, packed: Packed, max_context: int) -> dict[str, int]:
    """Hand every part over; returns bytes by format."""
    sizes: dict[str, int] = {}
    for linear in source.linears():
        fmt = packed.facts["formats"][linear.name]
        parts = [packed.arrays.get(f"{linear.name}.{part}") for part in ("packed", "scale", "wide")]
        assert parts[0] is not None
        model.set_linear(linear.name, fmt, linear.n, linear.k, parts[0], parts[1], parts[2])
        sizes[fmt] = sizes.get(fmt, 0) + sum(part.nbytes for part in parts if part is not None)
    rows, fmt = _embedding(source, packed)
    model.set_embedding(rows, fmt)
    sizes[f"embedding {fmt}"] = rows.nbytes
    if isinstance(source, EncoderSource):
        model.set_positions(source.positions(max_context))
    norms = source.norms()
    for name, weight in (norms if isinstance(source, EncoderSource) else even_keys(norms, source.spec)).items():
        model.set_norm(name, weight)
    for name, bias in source.biases().items():
        model.set_bias(name, bias)
    for table, (cos, sin) in enumerate(source.rope_tables(max_context)):
        model.set_rope(cos, sin, table)
    model.finish()
    return sizes


def _embedding(source: WeightSource, packed: Packed) -> tuple[npt.NDArray[np.generic], str]:
    stored = STORED_EMBEDDINGS.get(source.type_of(source.spec.embedding))
    if stored is None:
        return packed.arrays[EMBEDDING], "bf16"
    raw = source.file.raw(source.spec.embedding)
    dtype = {"q8_0": np.uint8, "f32": np.float32}.get(stored, np.uint16)
    return raw.view(dtype), stored
