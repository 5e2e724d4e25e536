"""Rotary position embeddings: by what each pair of a head is turned, for every known way of stretching a context.

Owns frequencies and tables; refuses scalings that are not listed here.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tailrace.engine.models.metadata import Metadata
from tailrace.frozen import frozen

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

FACTORS = "rope_freqs.weight"


@frozen
class Yarn:
    """YaRN (Peng et al., 2023, arXiv:2309.00071): a context `factor` times the `original` tokens.

    Frequencies that turn more than `fast` times within the original context stay, those that turn less than `slow`
    times are divided by `factor`, between them the two are blended. `attention` multiplies queries and keys.
    """

    factor: float
    original: int
    fast: float = 32.0
    slow: float = 1.0
    attention: float = 1.0

    def stretched(self, frequency: F64, theta: float, dim: int) -> F64:
        def pair(turns: float) -> float:
            """The pair, counted in fractions, that turns so many times within the original context."""
            return dim * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low, high = max(math.floor(pair(self.fast)), 0), min(math.ceil(pair(self.slow)), dim - 1)
        share = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1)
        blended: F64 = frequency / self.factor * share + frequency * (1 - share)
        return blended


@frozen
class Rope:
    """Rotary position embedding (Su et al., 2021, arXiv:2104.09864) of the first `dim` values of each head.

    `linear` divides positions (position interpolation, Chen et al., 2023, arXiv:2306.15595). `factors` names a tensor
    [dim / 2] that divides each frequency (how GGUF stores the scaling of Llama 3.1). `interleaved`: the file stores
    rows as pairs (2i, 2i+1), the executor rotates pairs (i, i + dim/2), so query and key rows are reordered at load.
    """

    theta: float
    dim: int
    linear: float = 1.0
    yarn: Yarn | None = None
    factors: str | None = None
    interleaved: bool = False

    def tables(self, positions: int, factors: F32 | None = None) -> tuple[F32, F32]:
        """(cos, sin) [positions, dim / 2], computed in float64."""
        frequency = self.theta ** (-np.arange(0, self.dim, 2) / self.dim) / self.linear
        size = 1.0
        if self.yarn is not None:
            frequency, size = self.yarn.stretched(frequency, self.theta, self.dim), self.yarn.attention
        if factors is not None:
            frequency = frequency / factors
        angle = np.outer(np.arange(positions), frequency)
        return (size * np.cos(angle)).astype(np.float32), (size * np.sin(angle)).astype(np.float32)

    def row_order(self, heads: int, head_dim: int) -> npt.NDArray[np.intp]:
        """Stored row for each row the executor wants, over `heads` heads: `w = stored[order]`."""
        within = np.arange(head_dim)
        if self.interleaved:
            within[: self.dim] = within[: self.dim].reshape(-1, 2).T.ravel()
        return (np.arange(heads)[:, None] * head_dim + within).ravel()


def read_rope(metadata: Metadata, *, interleaved: bool = False, theta: float = 10000.0) -> Rope:
    """The rope of a checkpoint; `theta` is its base where the metadata has none. Raises ModelFileError."""
    head_dim = metadata.size("attention.key_length", _head_dim(metadata))
    kind = metadata.text("rope.scaling.type", "none")
    if kind not in ("none", "linear", "yarn"):
        raise metadata.error(f"rope scaling {kind!r} is not built; 'none', 'linear', 'yarn' and frequency factors are.")
    linear = metadata.number("rope.scaling.factor", 1.0) if kind == "linear" else 1.0
    base = metadata.number("rope.freq_base", theta)
    if kind == "yarn" and base <= 1:
        raise metadata.error(f"the rope base is {base}; yarn needs one above 1.")
    return Rope(
        theta=base,
        dim=metadata.size("rope.dimension_count", head_dim),
        linear=metadata.number("rope.scale_linear", linear),
        yarn=_read_yarn(metadata) if kind == "yarn" else None,
        factors=FACTORS if FACTORS in metadata.file.tensors else None,
        interleaved=interleaved,
    )


def _read_yarn(metadata: Metadata) -> Yarn:
    """`attn_factor` is GGUF's and multiplies the usual attention factor; the hub's `attention_factor` replaces it."""
    factor = metadata.number("rope.scaling.factor")
    usual = (1 + 0.1 * math.log(factor) if factor > 1 else 1.0) * metadata.number("rope.scaling.attn_factor", 1.0)
    return Yarn(
        factor=factor,
        original=metadata.size("rope.scaling.original_context_length", metadata.size("context_length")),
        fast=metadata.number("rope.scaling.yarn_beta_fast", 32.0),
        slow=metadata.number("rope.scaling.yarn_beta_slow", 1.0),
        attention=metadata.number("rope.scaling.attention_factor", usual),
    )


def _head_dim(metadata: Metadata) -> int:
    return max(1, metadata.size("embedding_length") // metadata.size("attention.head_count"))
