"""How each family of models writes calls, as data: to read them, to make a grammar of them, to show a model how.

Which one a model was trained on says its template; `--tool-parser` overrides that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import MappingProxyType

from tailrace.errors import ConfigError
from tailrace.frozen import frozen
from tailrace.text.parsers.delta import Parser, Signature
from tailrace.text.parsers.json_calls import JsonCalls, JsonSyntax
from tailrace.text.parsers.pythonic import PythonicCalls


@frozen
class ToolFormat:
    """`call` is what stands before a name, between it and the arguments, and behind them; `first`, `between` and `last`
    stand around several. `marks` may be tokens of their own in a vocabulary, with no text otherwise. `id_length`: call
    ids have that many letters and digits, and nothing else."""

    name: str
    make: Callable[[Sequence[Signature]], Parser]
    call: tuple[str, str, str] = ('{"name": "', '", "arguments": ', "}")
    first: str = ""
    between: str = ", "
    last: str = ""
    marks: tuple[str, ...] = ()
    id_length: int = 0
    constrained: Callable[[Sequence[Signature]], Parser] | None = None  # where a grammar writes calls in another way

    def written(self, calls: Iterable[tuple[str, str]]) -> str:
        """Calls (name, arguments as JSON) as the model would write them."""
        before, middle, behind = self.call
        texts = [f"{before}{name}{middle}{arguments}{behind}" for name, arguments in calls]
        return self.first + self.between.join(texts) + self.last


def _json(syntax: JsonSyntax) -> Callable[[Sequence[Signature]], Parser]:
    return partial(JsonCalls, syntax)


_FENCED = ("```json", "```")
_HERMES = ToolFormat(
    "hermes",
    _json(JsonSyntax(marks=("<tool_call>",), ends=("</tool_call>",))),
    call=('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>"),
    between="\n",
    marks=("<tool_call>", "</tool_call>"),
)
_LLAMA3 = ToolFormat(
    "llama3",
    _json(JsonSyntax(leads=("<|python_tag|>", "[", *_FENCED), ends=("]", "```"), separators=",;")),
    call=('{"name": "', '", "parameters": ', "}"),
    between="; ",
    marks=("<|python_tag|>",),
)
_MISTRAL = ToolFormat(
    "mistral",
    _json(JsonSyntax(marks=("[TOOL_CALLS]",), leads=("[",), ends=("]",), named=True)),
    first="[TOOL_CALLS][",
    last="]",
    marks=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    id_length=9,
)
_JSON = ToolFormat(
    "json",
    _json(JsonSyntax(leads=("[", *_FENCED, "<|tool_call|>"), ends=("]", "```", "<|/tool_call|>"), separators=",;")),
    first="[",
    last="]",
    marks=("<|tool_call|>", "<|/tool_call|>"),
)
# A grammar cannot hold Python to a JSON Schema, so where an answer must be a call it is written as JSON.
_PYTHONIC = ToolFormat(
    "pythonic",
    PythonicCalls,
    first="[",
    last="]",
    marks=("<|python_start|>", "<|python_end|>"),
    constrained=_JSON.make,
)

FORMATS = MappingProxyType({form.name: form for form in (_HERMES, _LLAMA3, _MISTRAL, _JSON, _PYTHONIC)})
AUTO = "auto"

# What a template writes or asks for, and the format it means; the first that is found.
_SIGNS = (
    ("<tool_call>", _HERMES),
    ("[TOOL_CALLS]", _MISTRAL),
    ("tool_code", _PYTHONIC),
    ("<|python_start|>", _PYTHONIC),
    ("pythonic", _PYTHONIC),
    ("<|python_tag|>", _LLAMA3),
    ('"parameters": ', _LLAMA3),
    ("<|tool_call|>", _JSON),
)


def tool_format(name: str, template: str, *, knows_tools: bool) -> ToolFormat:
    """`name` of a format, or AUTO: the one that the template means. A template that knows no tools gets our own words
    about them, and the one format that nothing else is mistaken for. Raises ConfigError."""
    if name != AUTO:
        if name not in FORMATS:
            raise ConfigError(f"tool_parser is {name}; known are {', '.join((AUTO, *FORMATS))}", param="tool_parser")
        return FORMATS[name]
    if not knows_tools:
        return _HERMES
    return next((form for sign, form in _SIGNS if sign in template), _JSON)


def example(form: ToolFormat) -> str:
    """A call as the model should write it, for a prompt."""
    if form is _PYTHONIC:
        return "[function_name(parameter=value)]"
    return form.written([("function_name", json.dumps({"parameter": "value"}))])
