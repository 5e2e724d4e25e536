"""Tools in a chat request: what is on offer, what may be called, and calls and results in the conversation.

A checked offer says everything that the rest needs: what the template is shown, whose calls a parser looks for, and the
grammar where an answer must be a call (`tool_grammar`). With `tool_choice: "none"` there is no offer at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.errors import ErrorKind, InvalidTools, Unsupported
from tailrace.frozen import frozen
from tailrace.protocol.body import Part, missing
from tailrace.text.parsers.delta import Signature
from tailrace.text.parsers.dialect import Dialect
from tailrace.text.tokenizer import clean_text

MAX_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_NO_PARAMETERS = {"type": "object", "properties": {}}
_MODES = ("none", "auto", "required")


class FunctionTool(Part):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def accepts(self) -> dict[str, Any]:
        return self.parameters or _NO_PARAMETERS


class Tool(Part):
    """A function; other kinds are known and refused."""

    type: str
    function: FunctionTool | None = None


ToolChoice = str | dict[str, Any]


@frozen
class Offer:
    """`functions` are shown to the model, of which `callable` may be called. `must`: the answer is calls, nothing else.
    `several`: there may be more than one."""

    functions: tuple[FunctionTool, ...]
    callable: tuple[FunctionTool, ...]
    must: bool = False
    several: bool = True

    @property
    def signatures(self) -> list[Signature]:
        found = []
        for function in self.callable:
            properties = function.accepts().get("properties")
            found.append(Signature(function.name, tuple(properties) if isinstance(properties, dict) else ()))
        return found

    def for_template(self) -> list[dict[str, Any]]:
        """As templates expect tools: they look for parameters without asking."""
        return [{"type": "function", "function": _described(function)} for function in self.functions]


def offer(tools: Sequence[Tool] | None, choice: ToolChoice | None, several: bool | None) -> Offer | None:
    """None without tools, or where none may be called. Raises InvalidRequest or Unsupported naming the field."""
    if not tools:
        if choice is not None and choice != "none":
            raise InvalidTools("tool_choice needs tools", param="tool_choice")
        return None
    functions = _functions(tools)
    if choice == "none":
        return None
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        mode, some = _allowed(choice.get("allowed_tools"), functions)
        return Offer(functions, some, must=mode == "required", several=several is not False)
    named = _named(choice, functions)
    if named is not None:
        return Offer(functions, (named,), must=True, several=False)
    return Offer(functions, functions, must=choice == "required", several=several is not False)


def _functions(tools: Sequence[Tool]) -> tuple[FunctionTool, ...]:
    if len(tools) > MAX_TOOLS:
        raise InvalidTools(f"tools holds {len(tools)}; at most {MAX_TOOLS} are taken", param="tools")
    found: dict[str, FunctionTool] = {}
    for i, tool in enumerate(tools):
        where = f"tools[{i}].function"
        function = _function(tool, f"tools[{i}]")
        if function.name in found:
            raise InvalidTools(f"{where}.name is {function.name!r}, as another tool's", param=f"{where}.name")
        found[function.name] = function
    return tuple(found.values())


def _function(tool: Tool, where: str) -> FunctionTool:
    if tool.type != "function":
        raise Unsupported(
            f"{where}.type is {tool.type[:40]!a}; only 'function' is supported",
            param=f"{where}.type",
            kind=ErrorKind.TOOL,
        )
    function = tool.function
    if function is None:
        raise missing(f"{where}.function")
    where = f"{where}.function"
    if not _NAME.match(function.name):
        raise InvalidTools(f"{where}.name must be 1 to 64 letters, digits, _ or -", param=f"{where}.name")
    kind = function.accepts().get("type", "object")
    if kind != "object":
        raise InvalidTools(f"{where}.parameters must be a schema of type object", param=f"{where}.parameters")
    return function


def _named(choice: ToolChoice | None, functions: Sequence[FunctionTool]) -> FunctionTool | None:
    if choice is None or isinstance(choice, str):
        if choice is not None and choice not in _MODES:
            raise InvalidTools(
                f"tool_choice is {choice[:40]!a}; expected 'none', 'auto', 'required' or a function",
                param="tool_choice",
            )
        return None
    if choice.get("type") != "function":
        raise Unsupported(
            "tool_choice.type must be 'function' or 'allowed_tools'", param="tool_choice.type", kind=ErrorKind.TOOL
        )
    return _known(choice.get("function"), functions, "tool_choice.function.name")


def _allowed(value: Any, functions: Sequence[FunctionTool]) -> tuple[str, tuple[FunctionTool, ...]]:
    """Some of the tools, and whether one must be called."""
    where = "tool_choice.allowed_tools"
    mode, tools = (value.get("mode"), value.get("tools")) if isinstance(value, Mapping) else (None, None)
    if mode not in ("auto", "required"):
        raise InvalidTools(f"{where}.mode must be 'auto' or 'required'", param=f"{where}.mode")
    if not isinstance(tools, list) or not tools:
        raise InvalidTools(f"{where}.tools must be a list of at least one tool", param=f"{where}.tools")
    given = [tool.get("function") if isinstance(tool, Mapping) else None for tool in tools]
    named = [_known(each, functions, f"{where}.tools[{i}].function.name") for i, each in enumerate(given)]
    return mode, tuple(function for function in functions if function in named)


def _known(value: Any, functions: Sequence[FunctionTool], where: str) -> FunctionTool:
    """The function that is named."""
    name = value.get("name") if isinstance(value, Mapping) else None
    if not isinstance(name, str):
        raise missing(where)
    found = next((each for each in functions if each.name == name), None)
    if found is None:
        raise InvalidTools(f"{where} is {name[:64]!a}, which is not among tools", param=where)
    return found


def _described(function: FunctionTool) -> dict[str, Any]:
    """A description that is not given is empty, as templates add it to other text."""
    return {"name": function.name, "description": function.description or "", "parameters": function.accepts()}


def past_calls(calls: Sequence[Mapping[str, Any]], dialect: Dialect, where: str) -> list[dict[str, Any]]:
    """Calls of an assistant's message as templates expect them. Raises InvalidRequest."""
    return [_past_call(call, dialect, f"{where}[{i}]") for i, call in enumerate(calls)]


def _past_call(call: Mapping[str, Any], dialect: Dialect, where: str) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping):
        raise InvalidTools(f"{where}.function must be an object", param=f"{where}.function")
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name:
        raise InvalidTools(f"{where}.function.name must be a text", param=f"{where}.function.name")
    if arguments is not None and not isinstance(arguments, str | Mapping):
        raise InvalidTools(f"{where}.function.arguments must be JSON as a text", param=f"{where}.function.arguments")
    clean_text(name, field=f"{where}.function.name")
    shown = _as_objects(arguments) if dialect.objects else _as_text(arguments)
    kept = {key: value for key, value in call.items() if key in ("id", "type")}
    return {"type": "function", **kept, "function": {"name": name, "arguments": shown}}


def _as_objects(arguments: str | Mapping[str, Any] | None) -> Any:
    """The object that the text means; the text where it means none, as it was cut."""
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _as_text(arguments: str | Mapping[str, Any] | None) -> str:
    return arguments or "{}" if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
