"""Tokens that a request does not want: `allowed_token_ids` and `bad_words` as mask rows, besides those of grammars.

A row that would leave nothing keeps what a grammar, or else `allowed_token_ids`, allows: an answer always goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt

from tailrace.engine.grammar.masks import Masks
from tailrace.engine.sequence import Sequence
from tailrace.types import GenerateRequest

U32 = npt.NDArray[np.uint32]


class Restriction:
    """Of one request. Kept for as long as its choice has a slot."""

    def __init__(self, request: GenerateRequest, vocab: int, end_ids: frozenset[int]) -> None:
        sampling, stop = request.sampling, request.stop
        self._words = sampling.bad_words
        self._longest = max(map(len, self._words), default=1)
        self._minimum = stop.min_tokens
        self._early = set(stop.token_ids) | (set() if stop.ignore_eos else end_ids)
        ids = np.array(sampling.allowed_token_ids or range(vocab), np.uint32)
        self._allowed = np.zeros(-(-vocab // 32), np.uint32)
        np.bitwise_or.at(self._allowed, ids >> np.uint32(5), np.uint32(1) << (ids & np.uint32(31)))

    def row(self, sequence: Sequence, behind: int, grammar: U32 | None) -> U32:
        """Bits of the tokens that may come `behind` guesses after what is known. `grammar`: the ones it allows."""
        base = self._allowed if grammar is None else _unless_empty(self._allowed & grammar, grammar)
        stop = max(sequence.known, sequence.group.prompt_tokens) + behind
        start = max(sequence.group.prompt_tokens, stop - self._longest + 1)
        said = sequence.tokens[start:stop].tolist() if self._longest > 1 else []
        banned = {word[-1] for word in self._words if _ends_with(said, word[:-1])}
        if max(sequence.generated, 0) + behind < self._minimum and grammar is None:
            banned |= self._early
        return _unless_empty(without(base, banned), base)


def restriction(request: GenerateRequest, vocab: int, end_ids: frozenset[int]) -> Restriction | None:
    sampling = request.sampling
    if not (sampling.allowed_token_ids or sampling.bad_words):
        return None
    return Restriction(request, vocab, end_ids)


def joined(found: Seq[Restriction | None], samplers: Seq[Sequence], behind: Seq[int], masks: Masks | None) -> Masks:
    """The masks of grammars with rows for the restricted samples. Masks that are given are not changed."""
    rows = np.full(len(samplers), -1, np.int32) if masks is None else masks.rows.copy()
    parts: list[U32] = [] if masks is None else list(masks.bits)
    for sample, one in enumerate(found):
        if one is not None:
            grammar = parts[rows[sample]] if rows[sample] >= 0 else None
            parts.append(one.row(samplers[sample], behind[sample], grammar))
            rows[sample] = len(parts) - 1
    return Masks(np.array(parts, np.uint32), rows)


def without(bits: U32, tokens: Iterable[int]) -> U32:
    kept = bits.copy()
    for token in tokens:
        kept[token >> 5] &= ~np.uint32(1 << (token & 31))
    return kept


def _ends_with(said: list[int], start: tuple[int, ...]) -> bool:
    return not start or tuple(said[-len(start) :]) == start


def _unless_empty(bits: U32, otherwise: U32) -> U32:
    return bits if bits.any() else otherwise
