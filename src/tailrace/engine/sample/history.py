"""Which tokens a choice has seen and how often it generated them, as the arrays the penalties need."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from tailrace.types import Tokens

I32 = npt.NDArray[np.int32]


class History:
    """Each id once; `counts` are generated occurrences, 0 for ids of the prompt only."""

    def __init__(self, prompt: Tokens) -> None:
        """`prompt` is empty when only generated tokens matter."""
        seen = np.unique(prompt)
        self._size = len(seen)
        self._ids = np.empty(max(64, 2 * self._size), dtype=np.int32)
        self._ids[: self._size] = seen
        self._counts = np.zeros(len(self._ids), dtype=np.int32)
        self._place = {token: place for place, token in enumerate(seen.tolist())}
        self.generated = 0

    def push(self, token: int) -> None:
        place = self._place.get(token)
        if place is None:
            place = self._place[token] = self._size
            self._grow()
            self._ids[place] = token
            self._size += 1
        self._counts[place] += 1
        self.generated += 1

    def ahead(self, tokens: list[int]) -> tuple[I32, I32]:
        """(ids, counts) as they were after these tokens too; changes nothing."""
        if not tokens:
            return self.ids, self.counts
        counts, new = self.counts.copy(), Counter[int]()
        for token in tokens:
            place = self._place.get(token)
            if place is None:
                new[token] += 1
            else:
                counts[place] += 1
        more = np.array([*new.keys()], np.int32), np.array([*new.values()], np.int32)
        return np.concatenate([self.ids, more[0]]), np.concatenate([counts, more[1]])

    @property
    def ids(self) -> I32:
        return self._ids[: self._size]

    @property
    def counts(self) -> I32:
        return self._counts[: self._size]

    def _grow(self) -> None:
        if self._size == len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
