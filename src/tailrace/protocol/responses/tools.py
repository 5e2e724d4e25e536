"""Functions and the choice among them, as a chat request has them. `strict` is the default of this API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailrace.errors import InvalidRequest, Unsupported
from tailrace.protocol.body import Part
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


def chat_choice(choice: Choice) -> Choice:
    """Raises InvalidRequest or Unsupported."""
    if isinstance(choice, str):
        return choice
    if choice.get("type") != "function":
        raise Unsupported(
            "tool_choice.type must be 'function': there are no other tools here", param="tool_choice.type"
        )
    return {"type": "function", "function": {"name": choice.get("name")}}


def _function(tool: ResponseTool, where: str, names: Names) -> Json:
    if tool.type != "function":
        raise Unsupported(
            f"{where}.type is {tool.type[:40]!a}; only 'function' is supported: this server runs no tools",
            param=f"{where}.type",
        )
    if tool.name is None:
        raise InvalidRequest(f"{where}.name is missing", param=f"{where}.name", code="missing_field")
    names[f"{where}.function"] = where
    function = {key: value for key, value in tool.shown().items() if key != "type"}
    return {"type": "function", "function": function}
