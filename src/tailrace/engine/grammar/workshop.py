"""Where grammars are compiled: llguidance with the engine's vocabulary. Imported by a worker, when the first grammar
comes, because importing llguidance takes a tenth of a second and most servers never need it."""

from __future__ import annotations

from collections.abc import Mapping

import llguidance

from tailrace.engine.grammar.compiler import Trial
from tailrace.engine.grammar.vocabulary import make_vocabulary
from tailrace.errors import InvalidRequest
from tailrace.text.tokenizer import Tokenizer
from tailrace.types import GrammarKind

_MAX_REASON = 400  # characters of llguidance's complaint


class CompiledGrammar:
    """`matcher` makes a copy of its beginning for one choice; `executor` computes the masks of several. `spoiled`: it
    hit a limit and is not to be kept."""

    def __init__(self, origin: llguidance.LLMatcher, executor: llguidance.LLExecutor) -> None:
        self._origin = origin
        self.executor = executor
        self.spoiled = False

    def matcher(self) -> llguidance.LLMatcher:
        return self._origin.deep_copy()


class Workshop:
    def __init__(self, tokenizer: Tokenizer, vocab_size: int, limits: Mapping[str, int | bool], guard: Trial) -> None:
        """Raises InvalidRequest for a model that cannot end an answer."""
        self._guard = guard
        self._limits = llguidance.LLParserLimits(**limits)  # type: ignore[arg-type]
        self._vocabulary = make_vocabulary(tokenizer, vocab_size)
        self._executor = llguidance.LLExecutor()

    def compile(self, kind: GrammarKind, source: str) -> CompiledGrammar:
        """Raises InvalidRequest."""
        try:
            text = _as_llguidance(kind, source)
        except ValueError as error:
            raise InvalidRequest(_reason(str(error))) from None
        refusal = self._guard.refusal(text)
        if refusal is not None:
            raise InvalidRequest(_reason(refusal))
        origin = llguidance.LLMatcher(self._vocabulary, text, log_level=0, limits=self._limits)
        if origin.is_error():
            raise InvalidRequest(_reason(origin.get_error()))
        return CompiledGrammar(origin, self._executor)


def _as_llguidance(kind: GrammarKind, source: str) -> str:
    if kind is GrammarKind.JSON_SCHEMA:
        return llguidance.LLMatcher.grammar_from_json_schema(source)
    if kind is GrammarKind.REGEX:
        return f"start: /{llguidance.regex_to_lark(source, 'd')}/"  # \d are the ten ASCII digits
    return llguidance.LLMatcher.grammar_from_lark(source)


def _reason(complaint: str) -> str:
    """llguidance's words without its state."""
    text = complaint.partition("<state>")[0].strip().removesuffix("<non-verbose/>").strip()
    return text if len(text) <= _MAX_REASON else text[:_MAX_REASON] + " ..."
