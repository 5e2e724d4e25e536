"""Where one choice stands in its grammar: as far as its tokens are known, and what must come next.

    known tokens | ahead: tokens that must follow | then the sampler chooses among those of a mask
                                                  ^ where the matcher stands

`ahead` is settled at once when a choice was made, and kept until all of it has come. So which tokens are forced
depends on the tokens before alone, not on how they were computed. Taking in is lazy: nothing needs to be told of
preemption, and guesses are tried and taken back within one call. Runs on the engine's thread, or on its helper while
that waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tailrace.errors import InternalError, InvalidRequest, TailraceError
from tailrace.types import Tokens

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

    from tailrace.engine.grammar.workshop import CompiledGrammar

U32 = npt.NDArray[np.uint32]


class GrammarState:
    def __init__(self, grammar: CompiledGrammar, field: str) -> None:
        self._grammar = grammar
        self._field = field
        self.matcher: LLMatcher = grammar.matcher()
        self.executor: LLExecutor = grammar.executor
        self.ahead: list[int] = []
        self.fault: Exception | None = None  # of ours, not the grammar's
        self._taken = 0  # generated tokens taken in
        self._settle()

    @property
    def broken(self) -> bool:
        """It cannot go on; `error` says why."""
        return self.fault is not None or self.matcher.is_error()

    def error(self) -> TailraceError:
        """The grammar is not kept for others: what it hit may be of its own making."""
        self._grammar.spoiled = True
        if self.fault is not None:
            failed = InternalError("following the grammar failed")
            failed.__cause__ = self.fault
            return failed
        return InvalidRequest(
            f"{self._field} is too complex to go on after {self._taken} tokens of the answer: the next one takes more "
            "work than the limit. Make it simpler, or its repetitions shorter",
            param=self._field,
            code="grammar_too_complex",
        )

    def take(self, generated: Tokens) -> None:
        """Catch up with the choice's tokens, of which the first ones were taken before."""
        if self._taken == len(generated):
            return
        for token in generated[self._taken :].tolist():
            if self.ahead:
                self.ahead.pop(0)
            elif self.matcher.consume_token(token):
                self._settle()
        self._taken = len(generated)

    def vet(self, guesses: Seq[int]) -> list[int]:
        """Those of a drafter's guesses that may come, with what they force among them. Only where nothing is ahead."""
        good: list[int] = []
        matcher = self.matcher
        while len(good) < len(guesses) and list(guesses[: len(good)]) == good:
            token = guesses[len(good)]
            if matcher.is_stopped() or not matcher.try_consume_tokens([token]):
                break
            good += [token, *self._force()]
        matcher.rollback(len(good))
        return good

    def fill(self, guesses: Seq[int], rows: U32, first: int) -> list[tuple[LLMatcher, int]]:
        """Fill rows[i], zeros so far, with what may come behind i guesses; what is left to compute: a matcher, and its
        row, where rows[0] is row `first`."""
        ahead = self.ahead
        for behind, token in enumerate(ahead[: len(rows)]):
            only(rows[behind], token)
        if len(rows) <= len(ahead) or self.broken:
            return []
        if len(guesses) > len(ahead):
            self.walk(guesses[len(ahead) :], rows[len(ahead) :])
            return []
        return [(self.matcher, first + len(ahead))]

    def walk(self, guesses: Seq[int], rows: U32) -> None:
        """Fill rows[i], zeros so far, with what may come behind i guesses. Only where nothing is ahead."""
        used = 0
        for forced, place in self._steps(guesses):
            used = place + len(forced)
            for ahead, token in enumerate(forced[: len(rows) - place]):
                only(rows[place + ahead], token)
            if not forced:
                self._fill(rows[place])
        self.matcher.rollback(used)

    def _steps(self, guesses: Seq[int]) -> Iterator[tuple[list[int], int]]:
        """Goes along the guesses while they may come: (what is forced behind them, how many there are)."""
        matcher, place, forced = self.matcher, 0, list[int]()
        yield forced, place
        while place < len(guesses) and not matcher.is_stopped() and matcher.try_consume_tokens([guesses[place]]):
            place += 1
            forced = self._force()
            if forced:
                yield forced, place
                if list(guesses[place : place + len(forced)]) != forced:
                    return
                place += len(forced)
            yield [], place

    def _settle(self) -> None:
        self.ahead = self._force()

    def _force(self) -> list[int]:
        """Take in all that must come next; what it was."""
        found: list[int] = []
        matcher = self.matcher
        while not matcher.is_stopped():
            forced = matcher.compute_ff_tokens()
            taken = matcher.try_consume_tokens(forced) if forced else 0
            found += forced[:taken]
            if not taken:
                break
        return found

    def _fill(self, row: U32) -> None:
        self.matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)


def only(row: U32, token: int) -> None:
    """Allow one token in a row of zeros."""
    row[token >> 5] = 1 << (token & 31)
