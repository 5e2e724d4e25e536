"""`tailrace config explain` and `tailrace version`: what this installation would do and why."""

from __future__ import annotations

from importlib.metadata import version

from tailrace.cli.output import console
from tailrace.config import Loaded, Setting
from tailrace.knobs import without_password
from tailrace.units import human_bytes


def print_settings(loaded: Loaded) -> None:
    """A table of every setting; those that differ from the default stand out."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in ("setting", "value", "from"):
        table.add_column(title, no_wrap=True)
    table.add_column("meaning", ratio=1)
    for setting, value, origin in loaded.rows():
        style = "" if origin == "default" else "bold"
        cells = (setting.name, shown(setting, value), origin, setting.rule.help)
        table.add_row(*(Text(cell) for cell in cells), style=style)
    console().print(table)


def shown(setting: Setting, value: object) -> str:
    """A value as people write it; of API keys only how many there are."""
    if setting.rule.unit == "key":
        return f"{len(value)} keys" if isinstance(value, tuple) else ""
    if setting.rule.unit == "url":
        value = without_password(str(value))
    if setting.rule.unit == "bytes" and isinstance(value, int) and value:
        return human_bytes(value)
    if setting.rule.unit == "seconds":
        return f"{value:g} s"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if value != "" else "(empty)"


def print_version() -> None:
    from tailrace import _native

    console().print(f"tailrace {version('tailrace')}, kernels: {', '.join(_native.variants())}")
