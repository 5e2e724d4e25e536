"""The hidden states of a prompt on their way to one vector, in whatever chunks they come.

Sums are in float64, one token after another, so that neither chunks nor a preemption change a bit of the result.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tailrace.engine.sequence import Group, Sequence
from tailrace.errors import InternalError
from tailrace.types import Pooling, Vector

F32 = npt.NDArray[np.float32]


class Hidden(NamedTuple):
    """Normed hidden states [n, hidden] of a sequence's tokens from position `first` on."""

    sequence: Sequence
    first: int
    rows: F32


def wanted(sequence: Sequence, first: int, size: int) -> tuple[int, int]:
    """(from, to) among positions first .. first + size - 1: those whose hidden states the vector is made of."""
    last = sequence.group.prompt_tokens - 1
    match sequence.group.request.pooling:
        case Pooling.MEAN:
            return first, first + size
        case Pooling.FIRST:
            return (0, 1) if first == 0 else (first, first)
        case _:
            return (last, last + 1) if first <= last < first + size else (first, first)


class Pool:
    """Of one request. Feed it `add`, then take `vector`."""

    def __init__(self, group: Group) -> None:
        self._done = 0  # tokens from the first on; those that are computed again do not count again
        self._sum: npt.NDArray[np.float64] | None = None
        self._tokens = group.prompt_tokens if group.request.pooling is Pooling.MEAN else 1

    def add(self, hidden: Hidden) -> None:
        rows = hidden.rows[max(self._done - hidden.first, 0) :].astype(np.float64)
        if not len(rows):
            return
        if self._sum is not None:
            rows = np.concatenate([self._sum[None], rows])
        self._sum = np.add.reduce(rows, axis=0)  # along this axis row by row
        self._done = hidden.first + len(hidden.rows)

    def vector(self) -> Vector:
        """Raises InternalError when the model's numbers are none."""
        assert self._sum is not None
        vector: Vector = (self._sum / self._tokens).astype(np.float32)
        if not np.isfinite(vector).all():
            raise InternalError("the model produced no valid numbers for this request")
        return vector
