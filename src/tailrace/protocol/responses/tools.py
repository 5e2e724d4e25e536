"""Functions and the choice among them, as a chat request has them. `strict` is the default of this API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailrace.errors import ErrorKind, Unsupported
from tailrace.protocol.body import Part, missing
from tailrace.protocol.names import Names

Json = dict[str, Any]

Choice = str | dict[str, Any]


class ResponseTool(Part):
    """A function; tools that OpenAI runs itself are known and refused."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def shown(self) -> Json:
        """As answers repeat it."""
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": self.strict is not False,
        }


def chat_tools(tools: Sequence[ResponseTool], names: Names) -> list[Json]:
    """Raises InvalidRequest or Unsupported."""
    return [_function(tool, f"tools[{i}]", names) for i, tool in enumerate(tools)]


def chat_choice(choice: Choice, names: Names) -> Choice:
    """Raises Unsupported."""
    if isinstance(choice, str):
        return choice
    kind, tools = choice.get("type"), choice.get("tools")
    if kind == "allowed_tools":
        names["tool_choice.allowed_tools"] = "tool_choice"
        return {"type": kind, kind: {"mode": choice.get("mode"), "tools": _named(tools, names)}}
    if kind != "function":
        raise Unsupported(
            "tool_choice.type must be 'function' or 'allowed_tools': this server runs no tools",
            param="tool_choice.type",
            kind=ErrorKind.TOOL,
        )
    return {"type": "function", "function": {"name": choice.get("name")}}


def _named(tools: Any, names: Names) -> Any:
    if not isinstance(tools, list):
        return tools
    for i in range(len(tools)):
        names[f"tool_choice.allowed_tools.tools[{i}].function"] = f"tool_choice.tools[{i}]"
    return [{"function": tool} for tool in tools]


def _function(tool: ResponseTool, where: str, names: Names) -> Json:
    if tool.type != "function":
        raise Unsupported(
            f"{where}.type is {tool.type[:40]!a}; only 'function' is supported: this server runs no tools",
            param=f"{where}.type",
            kind=ErrorKind.TOOL,
        )
    if tool.name is None:
        raise missing(f"{where}.name")
    names[f"{where}.function"] = where
    function = {key: value for key, value in tool.shown().items() if key != "type"}
    return {"type": "function", "function": function}
