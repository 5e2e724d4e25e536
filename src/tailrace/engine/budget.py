"""How much a step may hold: the contract that the scheduler asks, and the budget of a fixed chunk. `cost.py` has the
one that follows what steps take."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Protocol

from tailrace.engine.turns import Turns


class ChunkBudget(Protocol):
    @property
    def attention(self) -> float:
        """Prefill tokens that one unit of attention work (step.Work) takes as long as."""
        ...

    def chunk_tokens(self, decode_rows: int, kv_tokens: int, within: float = inf) -> int:
        """Most prefill tokens for a step that also has these decode rows, reading that many KV tokens; of a short step
        of `within` seconds."""
        ...

    def row_tokens(self, kv_tokens: int) -> float:
        """As standing.Prices."""
        ...

    def short_step(self, prompt_tokens: float) -> float:
        """Seconds of a step that prompts of this length can wait for without being much later."""
        ...

    def short_rows(self, rows: Iterable[int], seconds: float, prompts: bool) -> int:
        """How many of these decode rows, which read so many KV tokens each, fit such a step: in half of it beside
        prompts. One at the least."""
        ...


class FixedBudget:
    """The same chunk always: it knows no time, and so no short steps."""

    attention = 0.0

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def chunk_tokens(self, decode_rows: int, kv_tokens: int, within: float = inf) -> int:
        return self.tokens

    def row_tokens(self, kv_tokens: int) -> float:
        return 1.0

    def short_step(self, prompt_tokens: float) -> float:
        return inf

    def short_rows(self, rows: Iterable[int], seconds: float, prompts: bool) -> int:
        return len(list(rows))


class SharedBudget:
    """Another budget, for an engine that shares its threads: while answers of others run, which a long step would hold
    up, its prompts take as little of a step as beside answers of its own."""

    def __init__(self, budget: ChunkBudget, turns: Turns) -> None:
        self._budget = budget
        self._turns = turns

    @property
    def attention(self) -> float:
        return self._budget.attention

    def chunk_tokens(self, decode_rows: int, kv_tokens: int, within: float = inf) -> int:
        rows = decode_rows or int(self._turns.streams_beside)
        return self._budget.chunk_tokens(rows, kv_tokens, within)

    def row_tokens(self, kv_tokens: int) -> float:
        return self._budget.row_tokens(kv_tokens)

    def short_step(self, prompt_tokens: float) -> float:
        return self._budget.short_step(prompt_tokens)

    def short_rows(self, rows: Iterable[int], seconds: float, prompts: bool) -> int:
        return self._budget.short_rows(rows, seconds, prompts)
