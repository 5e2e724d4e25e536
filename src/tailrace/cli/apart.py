"""Commands whose modules have many flags of their own: imported when one of them is asked for, or all are listed, since
a server that starts needs none of them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from typer.core import TyperGroup
from typer.main import get_command

_APART = (("bench", "tailrace.cli.bench", "bench_app"), ("simulate", "tailrace.cli.simulate", "simulate_app"))


class Commands(TyperGroup):
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        for name, module, app in _APART:
            if name == cmd_name and name not in self.commands:
                self.commands[name] = get_command(getattr(import_module(module), app))
                self.commands[name].name = name
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        own = [name for name in super().list_commands(ctx) if name not in {name for name, *_ in _APART}]
        return [*own, *(name for name, *_ in _APART)]
