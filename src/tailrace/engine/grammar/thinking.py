"""Thoughts in front of an answer, bounded: after so many tokens of them the mark that ends them is forced. A grammar
holds from the first token behind.

    opening --begin mark--> inside --end mark--> over
       |                      +-- budget used up --> forced, token by token --> over
       +-- anything else --> over

A place is a function of the choice's tokens alone: batches, drafts and preemption change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tailrace.engine.grammar.state import U32, GrammarState, only
from tailrace.errors import InternalError, TailraceError
from tailrace.text.tokenizer import Tokenizer
from tailrace.types import Thinking, Tokens

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher


class Phase(Enum):
    OPENING = auto()
    INSIDE = auto()
    FORCED_OPEN = auto()
    FORCED_CLOSE = auto()
    OVER = auto()


class Place(NamedTuple):
    """`spent`: tokens inside, or forced ones so far; `tail`: bytes that may become a mark."""

    phase: Phase
    spent: int = 0
    tail: bytes = b""


class ThinkingRules:
    """A request's thinking in the tokens of its model."""

    def __init__(self, thinking: Thinking, tokenizer: Tokenizer, vocab_size: int, *, forced: bool) -> None:
        """`vocab_size`: tokens that the model has logits for. `forced`: the thoughts are begun for the model, as only
        they may come before what must follow."""

        def ids(text: str) -> list[int]:
            found: list[int] = tokenizer.encode(text, add_special=False, parse_special=True).tolist()
            return found

        self._begin, self._end = thinking.begin.encode(), thinking.end.encode()
        self._budget = thinking.budget
        self._bytes: Callable[[int], bytes] = lambda token: tokenizer.token_bytes(token, special=True)
        self.forced = {Phase.FORCED_OPEN: ids(thinking.begin + "\n"), Phase.FORCED_CLOSE: ids(f"\n{thinking.end}\n\n")}
        self.free = _free_row(vocab_size, tokenizer.end_ids if forced else frozenset())
        if thinking.inside:
            self.start = self._inside(0)
        else:
            self.start = Place(Phase.FORCED_OPEN if forced else Phase.OPENING)

    def step(self, place: Place, token: int) -> Place:
        """The place behind one more token."""
        phase, count, tail = place
        if phase is Phase.OVER:
            return place
        if phase in self.forced:
            if count + 1 < len(self.forced[phase]):
                return Place(phase, count + 1)
            return self._inside(0) if phase is Phase.FORCED_OPEN else Place(Phase.OVER)
        tail += self._bytes(token)
        return self._open(tail) if phase is Phase.OPENING else self._inside(count + 1, tail)

    def _open(self, tail: bytes) -> Place:
        found = tail.lstrip()
        if found.startswith(self._begin):
            return self._inside(0, found[len(self._begin) :])
        return Place(Phase.OPENING, 0, found) if self._begin.startswith(found) else Place(Phase.OVER)

    def _inside(self, count: int, tail: bytes = b"") -> Place:
        if self._end in tail:
            return Place(Phase.OVER)
        if self._budget is not None and count >= self._budget:
            return Place(Phase.FORCED_CLOSE)
        return Place(Phase.INSIDE, count, tail[-len(self._end) :])


class ThinkingState:
    """Where a choice stands in its thoughts, then in its grammar. As GrammarState."""

    def __init__(self, rules: ThinkingRules, inner: GrammarState | None) -> None:
        self._rules = rules
        self._inner = inner
        self._place = rules.start
        self._taken = 0
        self._before = 0  # tokens taken before the answer
        self.fault: Exception | None = None
        self.executor: LLExecutor | None = None if inner is None else inner.executor

    @property
    def broken(self) -> bool:
        return self.fault is not None or (self._inner is not None and self._inner.broken)

    def error(self) -> TailraceError:
        if self._inner is not None and self.fault is None:
            return self._inner.error()
        failed = InternalError("following the thoughts failed")
        failed.__cause__ = self.fault
        return failed

    @property
    def _over(self) -> bool:
        return self._place.phase is Phase.OVER

    @property
    def ahead(self) -> list[int]:
        phase, count, _ = self._place
        if phase in self._rules.forced:
            return self._rules.forced[phase][count:]
        return self._inner.ahead if self._inner is not None and phase is Phase.OVER else []

    def take(self, generated: Tokens) -> None:
        while self._taken < len(generated) and not self._over:
            self._place = self._rules.step(self._place, int(generated[self._taken]))
            self._taken += 1
            self._before = self._taken
        self._taken = len(generated)
        if self._inner is not None and self._over:
            self._inner.take(generated[self._before :])

    def vet(self, guesses: Seq[int]) -> list[int]:
        """Guesses up to where the thoughts are closed or a grammar begins."""
        place, good = self._place, list[int]()
        if self._over:
            return list(guesses) if self._inner is None else self._inner.vet(guesses)
        for token in guesses:
            if place.phase in self._rules.forced or (place.phase is Phase.OVER and self._inner is not None):
                break
            good.append(token)
            place = self._rules.step(place, token)
        return good

    def fill(self, guesses: Seq[int], rows: U32, first: int) -> list[tuple[LLMatcher, int]]:
        """See GrammarState.fill. Guesses go no further than `vet` and `ahead` let them."""
        place = self._place
        if place.phase is Phase.OVER and self._inner is not None:
            return self._inner.fill(guesses, rows, first)
        for behind in range(len(rows)):
            if behind:
                place = self._rules.step(place, guesses[behind - 1])
            if place.phase is Phase.OVER and self._inner is not None:
                return self._inner.fill([], rows[behind : behind + 1], first + behind)
            if place.phase in self._rules.forced:
                only(rows[behind], self._rules.forced[place.phase][place.spent])
            else:
                rows[behind] = self._rules.free
        return []


def _free_row(vocab_size: int, without: frozenset[int]) -> U32:
    """Every token but these: no end may come before an answer that must be."""
    allowed = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    allowed[:vocab_size] = 1
    allowed[list(without)] = 0
    return np.packbits(allowed, bitorder="little").view(np.uint32)
