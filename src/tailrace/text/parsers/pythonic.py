"""Calls written as Python: `[weather(city="Oslo", days=2), now()]`, also without the list and in a fenced block.

The whole answer is calls, or it is text. A call is told of when it is complete, as it has to be translated: literals
become JSON, arguments without a name get those of the tool's parameters in order.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Sequence

from tailrace.text.parsers.delta import Delta, Kind, Signature, merged
from tailrace.text.parsers.prose import Prose

_LEAD = re.compile(r"\s*(```[a-z_]*\s+|<\|python_start\|>\s*)?\[?\s*\Z")
_MAY_LEAD = re.compile(r"\s*(`{0,3}|```[a-z_]*|<\|?[a-z_]*\|?)\Z")
_NAME = re.compile(r"[a-zA-Z0-9_.-]*\Z")
_BEHIND = re.compile(r"[\s,;\]]*(```|<\|python_end\|>)?\s*\Z")
_MAY_BEHIND = re.compile(r"[\s,;\]]*(`{0,3}|<\|?[a-z_]*\|?)\Z")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_WORDS = {"true": True, "false": False, "null": None}
_MOST = 65_536  # characters of a call
_MOST_AROUND = 256  # between calls


class PythonicCalls:
    """See Parser."""

    unfinished = False  # a call is whole or none

    def __init__(self, tools: Sequence[Signature]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._prose = Prose()
        self._raw = ""  # read since the last call, shown if no call comes of it
        self._name = self._body = ""
        self._nesting: list[str] = []  # closing brackets to come; a quote while in a string
        self._escaped = False
        self._calls = 0
        self._out: list[Delta] = []
        self._state: Callable[[str], None] = self._lead

    def push(self, text: str) -> list[Delta]:
        for at, char in enumerate(text):
            if self._state == self._text:
                self._out += self._prose.text(text[at:])
                break
            self._state(char)
        return self._take()

    def finish(self) -> list[Delta]:
        if not (self._calls and _BEHIND.match(self._raw)):
            self._out += self._prose.text(self._raw)
        self._raw = ""
        self._out += self._prose.finish()
        return self._take()

    def _take(self) -> list[Delta]:
        out, self._out = merged(self._out), []
        return out

    def _text(self, char: str) -> None:
        self._out += self._prose.text(char)

    def _no_call(self) -> None:
        raw, self._raw = self._raw, ""
        self._state = self._text
        self._out += self._prose.text(raw)

    def _lead(self, char: str) -> None:
        """Before a call's name: the first time what an answer begins with, then what stands between calls."""
        first, may = (_BEHIND, _MAY_BEHIND) if self._calls else (_LEAD, _MAY_LEAD)
        self._raw += char
        if len(self._raw) < _MOST_AROUND and (first.match(self._raw) or may.match(self._raw)):
            return
        if first.match(self._raw[:-1]) and _NAME.match(char):
            self._name = char
            self._state = self._in_name
            return
        self._no_call()

    def _in_name(self, char: str) -> None:
        self._raw += char
        if char == "(" and self._name in self._tools:
            self._body, self._nesting = "(", [")"]
            self._state = self._in_call
        elif _NAME.match(char) and any(name.startswith(self._name + char) for name in self._tools):
            self._name += char
        else:
            self._no_call()

    def _in_call(self, char: str) -> None:
        self._raw += char
        self._body += char
        self._nest(char)
        if not self._nesting:
            self._end()
        elif len(self._body) > _MOST:
            self._no_call()

    def _nest(self, char: str) -> None:
        inmost = self._nesting[-1]
        if inmost in "'\"":
            if self._escaped or char == "\\":
                self._escaped = not self._escaped
            elif char == inmost:
                self._nesting.pop()
        elif char in "'\"":
            self._nesting.append(char)
        elif char in _CLOSING:
            self._nesting.append(_CLOSING[char])
        elif char == inmost:
            self._nesting.pop()

    def _end(self) -> None:
        try:
            arguments = _arguments(self._body, self._tools[self._name].parameters)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            self._no_call()
            return
        self._raw = ""
        self._prose.call()
        self._out.append(Delta(Kind.CALL, arguments, self._calls, self._name))
        self._calls += 1
        self._state = self._lead


def _arguments(body: str, parameters: Sequence[str]) -> str:
    """`(a, x=1)` as JSON. Raises ValueError and what `ast` raises for what is no call with literals."""
    call = ast.parse("f" + body, mode="eval").body
    if not isinstance(call, ast.Call) or len(call.args) > len(parameters):
        raise ValueError
    named = dict(zip(parameters, map(_value, call.args), strict=False))
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in named:
            raise ValueError
        named[keyword.arg] = _value(keyword.value)
    text = json.dumps(named, ensure_ascii=False, allow_nan=False)
    text.encode()  # half a surrogate pair cannot be sent
    return text


def _value(node: ast.expr) -> object:
    """A literal; also JSON's own words for three of them."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and inner.id not in _WORDS:
            raise ValueError
    plain = _Words().visit(node)
    return ast.literal_eval(plain)


class _Words(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_WORDS[node.id])
