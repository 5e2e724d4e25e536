"""Tools for templates that know none: the system text says what there is and how to call it, calls and results of the
conversation become turns that any template can show."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.text.parsers.formats import ToolFormat, example

Turn = dict[str, Any]


def system_text(tools: Sequence[Mapping[str, Any]], form: ToolFormat) -> str:
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return (
        "You can call functions. These are there, one a line, as JSON with their parameters:\n"
        f"{listed}\n\n"
        "To call one, write nothing but:\n"
        f"{example(form)}\n"
        "Its result comes with the next message. Answer in plain words where no function helps."
    )


def with_tools(
    turns: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    form: ToolFormat,
    *,
    takes_system: bool,
) -> list[Turn]:
    """The conversation for a template that knows no tools. `takes_system`: it shows a system message; otherwise the
    text stands before the first message of the user."""
    shown = _joined([_shown(turn, form) for turn in turns])
    if not tools:
        return shown
    said = system_text(tools, form)
    first = shown[0]
    if first["role"] in ("system", "developer"):
        return [_led(first, said, behind=True), *shown[1:]]
    if takes_system:
        return [{"role": "system", "content": said}, *shown]
    at = next((i for i, turn in enumerate(shown) if turn["role"] == "user"), None)
    if at is None:
        return [{"role": "user", "content": said}, *shown]
    return [*shown[:at], _led(shown[at], said, behind=False), *shown[at + 1 :]]


def _shown(turn: Mapping[str, Any], form: ToolFormat) -> Turn:
    if turn["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{_text(turn)}\n</tool_response>", "result": True}
    calls = turn.get("tool_calls")
    if not calls:
        return dict(turn)
    written = form.written(
        [(call["function"]["name"], _json(call["function"]["arguments"])) for call in calls],
    )
    return {"role": turn["role"], "content": "\n".join(filter(None, (_text(turn), written)))}


def _joined(turns: list[Turn]) -> list[Turn]:
    """Results that follow each other are one turn, and so is the user's message behind them: templates that want roles
    to alternate know nothing of tools."""
    found: list[Turn] = []
    for turn in turns:
        last = found[-1] if found else None
        if last is not None and last.get("result") and turn["role"] == "user":
            last["content"] = f"{last['content']}\n{_text(turn)}"
            last["result"] = bool(turn.get("result"))
        else:
            found.append(turn)
    return [{key: value for key, value in turn.items() if key != "result"} for turn in found]


def _led(turn: Turn, said: str, *, behind: bool) -> Turn:
    texts = (_text(turn), said) if behind else (said, _text(turn))
    return {**turn, "content": "\n\n".join(filter(None, texts))}


def _text(turn: Mapping[str, Any]) -> str:
    content = turn.get("content")
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content)
    return content or ""


def _json(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
