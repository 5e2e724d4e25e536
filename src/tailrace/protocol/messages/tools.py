"""Tools and the choice among them, as a chat request has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from tailrace.errors import ErrorKind, Unsupported
from tailrace.protocol.body import Part, missing
from tailrace.protocol.names import Names

Json = dict[str, Any]


class CustomTool(Part):
    """A tool of the caller's own; those that Anthropic runs, or has trained its models on, are refused."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = None
    strict: bool | None = None


class ToolChoice(Part):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_tools(tools: Sequence[CustomTool], names: Names) -> list[Json]:
    """Raises InvalidRequest or Unsupported."""
    return [_function(tool, i, names) for i, tool in enumerate(tools)]


def chat_choice(choice: ToolChoice) -> Json:
    """The fields of a chat request. Raises InvalidRequest."""
    if choice.type != "tool":
        return {
            "tool_choice": _CHOICES[choice.type],
            "parallel_tool_calls": not choice.disable_parallel_tool_use,
        }
    if choice.name is None:
        raise missing("tool_choice.name")
    return {"tool_choice": {"type": "function", "function": {"name": choice.name}}}


def _function(tool: CustomTool, number: int, names: Names) -> Json:
    where = f"tools[{number}]"
    if tool.type not in (None, "custom"):
        raise Unsupported(
            f"{where}.type is {tool.type[:40]!a}; only tools of your own are supported, with an input_schema",
            param=f"{where}.type",
            kind=ErrorKind.TOOL,
        )
    if tool.input_schema is None:
        raise missing(f"{where}.input_schema")
    names[f"{where}.function"] = where
    names[f"{where}.function.parameters"] = f"{where}.input_schema"
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": tool.strict,
    }
    return {"type": "function", "function": function}
