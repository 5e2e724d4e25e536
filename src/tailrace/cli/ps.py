"""`tailrace ps`: the models of a running server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tailrace.cli.output import console
from tailrace.cli.top.source import HttpSource
from tailrace.units import human_bytes


def list_loaded(url: str, key: str, *, as_json: bool) -> None:
    """Raises ConfigError for what is no URL, Unavailable where no server answers, Unauthorized without the scope."""
    models = asyncio.run(_ask(url, key))
    if as_json:
        console().print(json.dumps(models, indent=2), markup=False, highlight=False, soft_wrap=True)
        return
    from rich.table import Table

    table = Table("model", "state", "memory", "requests", "idle", "", box=None, pad_edge=False)
    for model in models:
        memory = human_bytes(model["memory_bytes"]) if model["memory_bytes"] else ""
        requests = f"{model['running']} running, {model['waiting']} waiting"
        table.add_row(model["name"], model["state"], memory, requests, _time(model["idle_s"]), _note(model))
    console().print(table)


async def _ask(url: str, key: str) -> list[dict[str, Any]]:
    source = HttpSource(url, key)
    try:
        return await source.models()
    finally:
        await source.close()


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _note(model: dict[str, Any]) -> str:
    if model["error"]:
        return str(model["error"])
    left = model["unloaded_in_s"]
    return "" if left is None else f"unloaded in {_time(left)}"
