"""Grammars to what the engine walks along, compiled off the event loop and kept for whoever sends the same again.

Owns the limits: of a source's size, of the time and memory of compiling (guard.py), of the work of one mask (in
llguidance's own counters, so that no grammar holds up a step for long), of how many compiled grammars are kept. What
does not fit is refused with a 400 that names the field and the limit. Refusals are kept too, and cost nothing again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from tailrace.engine.grammar.guard import Guards
from tailrace.errors import InvalidRequest
from tailrace.text.tokenizer import Tokenizer
from tailrace.types import Grammar, GrammarKind

if TYPE_CHECKING:
    from tailrace.engine.grammar.workshop import CompiledGrammar, Workshop

MAX_SOURCE = 256 << 10  # characters
MAX_KEPT = 32  # grammars
COMPILE_SECONDS = 5.0
AT_ONCE = 3  # grammars being compiled

# See LLParserLimits. Fuel and items bound a mask to about 20 ms; a lexer state takes 1 to 2 kB.
LIMITS = MappingProxyType(
    {
        "initial_lexer_fuel": 1_000_000,
        "step_lexer_fuel": 200_000,
        "step_max_items": 50_000,
        "max_lexer_states": 50_000,
        "max_grammar_size": 500_000,
        "precompute_large_lexemes": False,
        "verbose_errors": False,
    }
)


class Trial(Protocol):
    """A guard, or what stands for it."""

    def refusal(self, grammar: str) -> str | None: ...
    def close(self) -> None: ...


_Key = tuple[GrammarKind, str]


class GrammarCompiler:
    """One for each vocabulary. `get` may be called on several event loops."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, *, guard: Trial | None = None) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._workshop: Workshop | None = None
        self._guard = guard or Guards(AT_ONCE, LIMITS, COMPILE_SECONDS)
        self._workers = ThreadPoolExecutor(AT_ONCE, "tailrace-grammar")
        self._kept: OrderedDict[_Key, Future[CompiledGrammar]] = OrderedDict()
        self._lock = Lock()
        self._opening = Lock()

    async def get(self, grammar: Grammar) -> CompiledGrammar:
        """Raises InvalidRequest naming the grammar's field."""
        if len(grammar.source) > MAX_SOURCE:
            raise InvalidRequest(
                f"{grammar.field} has {len(grammar.source)} characters; at most {MAX_SOURCE} are taken",
                param=grammar.field,
            )
        try:
            return await asyncio.shield(asyncio.wrap_future(self._future(grammar)))
        except InvalidRequest as refused:
            raise InvalidRequest(f"{grammar.field}: {refused.message}", param=grammar.field) from None

    def close(self) -> None:
        """Ends the guard's process. What is being compiled is given up."""
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._guard.close()

    def _future(self, grammar: Grammar) -> Future[CompiledGrammar]:
        key = (grammar.kind, grammar.source)
        with self._lock:
            found = self._kept.get(key)
            if found is None or _is_of_no_use(found):
                found = self._kept[key] = self._workers.submit(self._compile, *key)
            self._kept.move_to_end(key)
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return found

    def _compile(self, kind: GrammarKind, source: str) -> CompiledGrammar:
        """In a worker. Raises InvalidRequest."""
        with self._opening:
            if self._workshop is None:
                from tailrace.engine.grammar.workshop import Workshop  # noqa: PLC0415 - see there

                self._workshop = Workshop(self._tokenizer, self._vocab_size, LIMITS, self._guard)
        return self._workshop.compile(kind, source)


def _is_of_no_use(future: Future[CompiledGrammar]) -> bool:
    """Spoiled, or failed for a reason that is not the grammar's."""
    if not future.done():
        return False
    error = future.exception()
    return future.result().spoiled if error is None else not isinstance(error, InvalidRequest)
