"""A runner without weights whose answers depend on every byte of KV state, for tests and benchmarks of the engine.

Its "KV memory" holds one number a position, a hash of token and position. The next token is a hash of the sum of
the numbers in the sequence's blocks, so a wrong block, a missed copy or a stale cache entry gives a wrong token,
and a right one depends on the sequence's tokens (and its sampling key) alone, whatever ran beside it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tailrace.engine.grammar.masks import MaskMaker, Masks
from tailrace.engine.kv.manager import BLOCK_TOKENS
from tailrace.engine.pool import Hidden, wanted
from tailrace.engine.sample.keys import mix64, sampling_key
from tailrace.engine.sequence import Sequence
from tailrace.engine.step import BAD, Row, Scores, StepPlan, StepResult

U64 = npt.NDArray[np.uint64]
_MASK = (1 << 64) - 1
HIDDEN = 4  # numbers of a hidden state


class FakeRunner:
    def __init__(
        self, blocks: int, *, vocab: int = 256, block_tokens: int = BLOCK_TOKENS, masks: MaskMaker | None = None
    ) -> None:
        """Without `masks` no sequence may have a grammar."""
        self.vocab = vocab
        self.steps = 0
        self.computed = 0  # positions computed so far
        self._size = block_tokens
        self._masks = masks
        self._memory: U64 = np.zeros((blocks, block_tokens), np.uint64)

    def forward(self, plan: StepPlan) -> None:
        for src, dst in plan.copies:
            self._memory[dst] = self._memory[src]
        for row in plan.rows:
            self._write(row)
            self.computed += row.size
        self.steps += 1

    def sample(self, plan: StepPlan) -> StepResult:
        tokens, contexts = [], []
        drafted = {draft.row for draft in plan.drafts}
        masks = None if self._masks is None else self._masks.make(plan)
        samples = zip(plan.samplers, plan.sample_rows, plan.behind, strict=True)
        for sample, (sequence, place, behind) in enumerate(samples):
            row = plan.rows[place]
            position = row.first + (1 + behind if place in drafted else row.size)
            context = self._context(row.sequence, position)
            tokens.append(self._token(sequence, context, position, _allowed(masks, sample)))
            contexts.append(context)
        width = max((_alternatives(s) for s in plan.samplers), default=0)
        logprobs = np.array([self._logprob(c, t) for c, t in zip(contexts, tokens, strict=True)], np.float32)
        tops = np.array([self._top(context, width) for context in contexts], np.int32).reshape(len(tokens), width)
        result = StepResult(tokens, logprobs, tops, self._tops(contexts, tops), self._scores(plan), self._hidden(plan))
        return result if masks is None else masks.refuse_broken(plan.samplers, result)

    def continuation(self, prompt: list[int], key: int | None, length: int) -> list[int]:
        """The `length` tokens that follow a prompt (`key` None: greedy), by definition rather than from memory."""
        context = int(_hashes(np.array(prompt, np.int32), 0).sum())
        tokens: list[int] = []
        for position in range(len(prompt), len(prompt) + length):
            tokens.append(self._choose(context, key, position))
            context = (context + _hash(tokens[-1], position)) & _MASK
        return tokens

    def _write(self, row: Row) -> None:
        sequence, first, size, *_ = row
        table = sequence.table
        assert table is not None
        if size == 1:
            block, place = divmod(first, self._size)
            self._memory[table.blocks[block], place] = _hash(int(sequence.tokens[first]), first)
            return
        positions = np.arange(first, first + size)
        blocks = table.row[positions // self._size]
        self._memory[blocks, positions % self._size] = _hashes(sequence.tokens[first : first + size], first)

    def _context(self, sequence: Sequence, length: int) -> int:
        table = sequence.table
        assert table is not None
        used = -(-length // self._size)
        return int(self._memory[table.row[:used]].reshape(-1)[:length].sum())

    def _token(self, sequence: Sequence, context: int, position: int, allowed: list[int] | None) -> int:
        group = sequence.group
        greedy = group.request.sampling.temperature == 0
        key = None if greedy else sampling_key(group.key_seed, sequence.index)
        return self._choose(context, key, position, allowed)

    def _choose(self, context: int, key: int | None, position: int, allowed: list[int] | None = None) -> int:
        """The hash is a place among the allowed tokens; BAD where there is none."""
        noise = 0 if key is None else mix64(key ^ mix64(position))
        if allowed is None:
            return mix64(context ^ noise) % self.vocab
        return allowed[mix64(context ^ noise) % len(allowed)] if allowed else BAD

    def _logprob(self, context: int, token: int) -> float:
        return -(mix64(context + token * 31 & _MASK) % 10_000) / 1000

    def _top(self, context: int, width: int) -> list[int]:
        """The best of the whole vocabulary, ties to the lowest id."""
        return sorted(range(self.vocab if width else 0), key=lambda token: -self._logprob(context, token))[:width]

    def _tops(self, contexts: list[int], tops: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        values = [[self._logprob(c, t) for t in row.tolist()] for c, row in zip(contexts, tops, strict=True)]
        return np.array(values, np.float32).reshape(tops.shape)

    def _scores(self, plan: StepPlan) -> tuple[Scores, ...]:
        return tuple(self._score(row) for row in plan.rows if row.score_to > row.score_from)

    def _hidden(self, plan: StepPlan) -> tuple[Hidden, ...]:
        """Four numbers for each token that hang on all before it."""
        found = []
        for sequence, first, size, *_ in plan.rows[len(plan.rows) - plan.pooled :]:
            start, stop = wanted(sequence, first, size)
            contexts = [self._context(sequence, position + 1) for position in range(start, stop)]
            rows = [[mix64(context + k & _MASK) / 2**64 - 0.5 for k in range(HIDDEN)] for context in contexts]
            found.append(Hidden(sequence, start, np.array(rows, np.float32).reshape(-1, HIDDEN)))
        return tuple(found)

    def _score(self, row: Row) -> Scores:
        sequence, targets = row.sequence, range(row.score_from, row.score_to)
        width = sequence.group.request.prompt_logprobs or 0
        contexts = [self._context(sequence, target) for target in targets]
        logprobs = [self._logprob(c, int(sequence.tokens[t])) for c, t in zip(contexts, targets, strict=True)]
        tops = np.array([self._top(context, width) for context in contexts], np.int32).reshape(len(targets), width)
        return Scores(sequence, row.score_from, np.array(logprobs, np.float32), tops, self._tops(contexts, tops))


def _alternatives(sequence: Sequence) -> int:
    search = sequence.group.search
    return (sequence.group.request.sampling.logprobs or 0) if search is None else search.alternatives


def _allowed(masks: Masks | None, sample: int) -> list[int] | None:
    """Ids in order; None: all."""
    if masks is None or masks.rows[sample] < 0:
        return None
    bits = np.unpackbits(masks.bits[masks.rows[sample]].view(np.uint8), bitorder="little")
    return [int(token) for token in np.flatnonzero(bits)]


def _hash(token: int, position: int) -> int:
    """One 64-bit number for a token at a position."""
    return mix64(((token + 1) * 0x9E3779B97F4A7C15 ^ (position + 1) * 0xD1342543DE82EF95) & _MASK)


def _hashes(tokens: npt.NDArray[np.int32], first: int) -> U64:
    """`_hash` of each token, the first at position `first`."""
    positions = np.arange(first, first + len(tokens), dtype=np.uint64)
    value = (tokens.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    value ^= (positions + np.uint64(1)) * np.uint64(0xD1342543DE82EF95)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(value ^ (value >> np.uint64(31)), np.uint64)
