"""Where grammars are compiled: llguidance with the engine's vocabulary. Imported by a worker, when the first grammar
comes, because importing llguidance takes a tenth of a second and most servers never need it."""

from __future__ import annotations

import re
from collections.abc import Mapping

import llguidance

from tailrace.engine.grammar.compiler import Trial
from tailrace.engine.grammar.vocabulary import make_vocabulary
from tailrace.errors import InvalidRequest
from tailrace.text.tokenizer import Tokenizer
from tailrace.types import GrammarKind

_MAX_REASON = 400  # characters of llguidance's complaint
_MOST_FORCED = 4096  # bytes, about
_REPEATED = re.compile(r"\{\s*(\d+)")  # in a pattern or a Lark rule; JSON has no digits there


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
    if may_force_long_texts(source if kind is not GrammarKind.REGEX else f'"{source}"'):
        return _without_forcing(kind, source)
    if kind is GrammarKind.JSON_SCHEMA:
        return llguidance.LLMatcher.grammar_from_json_schema(source)
    return _as_lark(kind, source)


def may_force_long_texts(source: str) -> bool:
    """Whether a pattern's repetitions, or a text between quotes, may amount to more than a step should force at once.

    llguidance works out all that is forced in one go, some microseconds a byte, and `((ab){999}){999}` forces two
    million. This asks only how large it could be, so that some grammars go without forcing that need not.
    """
    if max(map(len, source.split('"'))) > _MOST_FORCED:
        return True
    repeated = 1
    for count in _REPEATED.findall(source):
        repeated *= max(1, int(count[:9]))
        if repeated > _MOST_FORCED:
            return True
    return False


def _without_forcing(kind: GrammarKind, source: str) -> str:
    """The same texts, each token chosen from its mask. Raises InvalidRequest."""
    if kind is GrammarKind.LARK and "%llguidance" in source:
        raise InvalidRequest("%llguidance is not taken in a grammar with texts or repetitions as long as these")
    lark = f"start: %json {source}" if kind is GrammarKind.JSON_SCHEMA else _as_lark(kind, source)
    return f'%llguidance {{"no_forcing": true}}\n{lark}'


def _as_lark(kind: GrammarKind, source: str) -> str:
    if kind is GrammarKind.REGEX:
        return f"start: /{llguidance.regex_to_lark(source, 'd')}/"  # \d are the ten ASCII digits
    return llguidance.LLMatcher.grammar_from_lark(source)


def _reason(complaint: str) -> str:
    """llguidance's words without its state."""
    text = complaint.partition("<state>")[0].strip().removesuffix("<non-verbose/>").strip()
    return text if len(text) <= _MAX_REASON else text[:_MAX_REASON] + " ..."
