"""The grammar of an answer that must be calls, or whose calls must be valid: the model's own way of writing them, with
each tool's schema in its place.

    required, named      calls and nothing else
    auto                 text; where a call begins in it, that call is one of these
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from tailrace.errors import InvalidTools
from tailrace.protocol.structured import json_part
from tailrace.protocol.tools import FunctionTool, Offer
from tailrace.text.parsers.dialect import Dialect
from tailrace.types import Grammar, GrammarKind

MAX_CALLS = 8  # in one answer that must be calls: small models do not stop by themselves
_ANY_OBJECT = {"type": "object"}
_TEXT = r"/(.|\n)*/"
_TEXT_BESIDE_CALLS = r"/[^\s{\[`<](.|\n)*/"  # where nothing marks a call but that it comes first


def tool_grammar(offer: Offer, dialect: Dialect, answer: Grammar | None) -> Grammar | None:
    """What the answer must be; None where it is free. `answer` constrains it where it is no call.

    Raises InvalidRequest naming the field.
    """
    if answer is not None and answer.kind is not GrammarKind.JSON_SCHEMA:
        raise InvalidTools(f"{answer.field} and tools exclude each other", param=answer.field)
    if offer.must:
        if answer is not None:
            raise InvalidTools(f"{answer.field} and tool_choice exclude each other", param=answer.field)
        return _Writer(offer, dialect).grammar(["start: calls"])
    if answer is not None:
        return _Writer(offer, dialect).grammar(["start: calls | answer", f"answer: %json {answer.source}"])
    if offer.several and not any(function.strict for function in offer.callable):
        return None
    writer = _Writer(offer, dialect)
    return writer.grammar(list(writer.beside_text()))


class _Writer:
    """Rules of the calls: `calls` are one or more, `call` is one."""

    def __init__(self, offer: Offer, dialect: Dialect) -> None:
        self._offer = offer
        self._format = dialect.tools
        self._special = dialect.special

    def grammar(self, rules: Sequence[str]) -> Grammar:
        return Grammar(GrammarKind.LARK, "\n".join((*rules, *self._calls())) + "\n", "tools")

    def beside_text(self) -> Iterator[str]:
        """Rules of an answer that is text, with calls where it marks one."""
        form = self._format
        opening = form.first + form.call[0]
        mark = next((mark for mark in form.marks if opening.startswith(mark)), None)
        if mark is None:
            yield "start: calls | TEXT_BESIDE |"
            yield f"TEXT_BESIDE: {_TEXT_BESIDE_CALLS}"
            return
        again = self._offer.several and not form.last
        yield "start: (marked rest)* TEXT" if again else "start: marked rest | TEXT"
        yield f"TEXT: {_TEXT}"
        yield self._marked(mark)
        if form.last:
            yield f"rest: {self._listed(form.first.removeprefix(mark))}"
        else:
            yield "rest: " + " | ".join(self._call(i, form.call[0].removeprefix(mark)) for i in self._numbers)

    def _marked(self, mark: str) -> str:
        """Text up to a mark."""
        if mark in self._special:
            return f"marked: TEXT <[{self._special[mark]}]>"
        return f"marked[lazy]: /(.|\\n)*{_escaped(mark)}/"

    def _calls(self) -> Iterator[str]:
        form = self._format
        yield f"calls: {self._listed(form.first)}"
        yield "call: " + " | ".join(f"call_{i}" for i in self._numbers)
        for i in self._numbers:
            yield f"call_{i}: {self._call(i, form.call[0])}"
            yield f"arguments_{i}: {self._arguments(self._offer.callable[i])}"

    @property
    def _numbers(self) -> range:
        return range(len(self._offer.callable))

    def _listed(self, first: str) -> str:
        return f"{self._literal(first)} call {self._more()} {self._literal(self._format.last)}"

    def _more(self) -> str:
        if not self._offer.several:
            return ""
        return f"({self._literal(self._format.between)} call){{0,{MAX_CALLS - 1}}}"

    def _call(self, number: int, before: str) -> str:
        _, middle, behind = self._format.call
        opening = self._literal(f"{before}{self._offer.callable[number].name}{middle}")
        return f"{opening} arguments_{number} {self._literal(behind)}"

    def _arguments(self, function: FunctionTool) -> str:
        free = not self._offer.must and not function.strict
        index = self._offer.functions.index(function)
        return json_part(_ANY_OBJECT if free else function.accepts(), f"tools[{index}].function.parameters")

    def _literal(self, text: str) -> str:
        """The text, with control tokens where marks are such."""
        parts, left = [], text
        while left:
            mark, at = self._next_mark(left)
            if left[:at]:
                parts.append(json.dumps(left[:at], ensure_ascii=False))
            if mark:
                parts.append(f"<[{self._special[mark]}]>")
            left = left[at + len(mark) :]
        return " ".join(parts)

    def _next_mark(self, text: str) -> tuple[str, int]:
        found = [(text.index(mark), mark) for mark in self._special if mark in text]
        at, mark = min(found, default=(len(text), ""))
        return mark, at


def _escaped(text: str) -> str:
    """As a regular expression: what could mean something stands in a class of its own."""
    return "".join(char if char.isalnum() or char in "<>_" else f"[\\{char}]" for char in text)
