"""How one model speaks of tools and thinks: found out once, by trying its template, and the same for all requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from tailrace.errors import RequestError
from tailrace.frozen import frozen
from tailrace.text.parsers.delta import Parser, Signature
from tailrace.text.parsers.formats import AUTO, FORMATS, ToolFormat, tool_format
from tailrace.text.parsers.reasoning import ReasoningFormat, reasoning_format
from tailrace.text.template import ChatTemplate
from tailrace.text.tokenizer import Tokenizer

_NAME, _VALUE, _SYSTEM = "probe_of_tools", "probe-of-arguments", "probe-of-system"
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
    },
}
_USER = {"role": "user", "content": "Hi"}
_CALL = {"id": "call00001", "type": "function", "function": {"name": _NAME, "arguments": {"a": _VALUE}}}


@frozen
class Dialect:
    """`special`: marks that are control tokens of the vocabulary, which have no text by themselves, and their ids.
    `knows_tools`: the template shows tools, calls and results; `objects`: it wants arguments as objects, not as text.
    """

    tools: ToolFormat = FORMATS["hermes"]
    special: Mapping[str, int] = field(default_factory=dict)
    knows_tools: bool = False
    takes_system: bool = True
    objects: bool = True
    reasoning: ReasoningFormat | None = None

    @classmethod
    def of(
        cls,
        template: ChatTemplate | None,
        tokenizer: Tokenizer,
        *,
        tool_parser: str = AUTO,
        reasoning_parser: str = AUTO,
    ) -> Dialect:
        """Raises ConfigError for a parser that is not known."""
        if template is None:
            tools, reasoning = tool_format(tool_parser, "", knows_tools=False), reasoning_format(reasoning_parser, "")
            return cls(tools, reasoning=reasoning)
        knows = _NAME in _tried(template, [_USER], tools=[_TOOL])
        source = template.source_with_tools if knows else template.source
        tools, reasoning = (
            tool_format(tool_parser, source, knows_tools=knows),
            reasoning_format(reasoning_parser, source),
        )
        marks = tools.marks if reasoning is None else (*tools.marks, *reasoning.marks)
        turns: list[Mapping[str, Any]] = [_USER, {"role": "assistant", "content": None, "tool_calls": [_CALL]}]
        return cls(
            tools,
            tokenizer.special_tokens(marks),
            knows_tools=knows,
            takes_system=_SYSTEM in _tried(template, [{"role": "system", "content": _SYSTEM}, _USER]),
            objects=_VALUE in _tried(template, turns, tools=[_TOOL]),
            reasoning=reasoning,
        )

    def reader(self, *, constrained: bool) -> Callable[[Sequence[Signature]], Parser]:
        """What reads answers. `constrained`: a grammar writes the calls."""
        return (constrained and self.tools.constrained) or self.tools.make

    def shown(self, *, tools: bool) -> tuple[int, ...]:
        """Control tokens whose names are to be text of an answer, with `tools` on offer or without."""
        marks = (*(self.tools.marks if tools else ()), *(self.reasoning.marks if self.reasoning else ()))
        return tuple(sorted(self.special[mark] for mark in marks if mark in self.special))


def _tried(template: ChatTemplate, turns: Sequence[Mapping[str, Any]], **options: Any) -> str:
    """What the template makes of it; nothing where it refuses."""
    try:
        return template.render(turns, **options)
    except RequestError:
        return ""
