"""`tailrace config explain` and `tailrace version`: what this installation would do and why."""

from __future__ import annotations

from importlib.metadata import version

from tailrace.cli.output import console
from tailrace.cli.tables import table_rows
from tailrace.config import Loaded
from tailrace.knobs import Rule, price_text, without_password
from tailrace.units import human_bytes


def print_settings(loaded: Loaded) -> None:
    """A table of every setting, those of tenants, classes and rules too; what differs from the default stands out."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in ("setting", "value", "from"):
        table.add_column(title, no_wrap=True)
    table.add_column("meaning", ratio=1)
    knobs = ((setting.name, value, origin, setting.rule) for setting, value, origin in loaded.rows())
    for name, value, origin, rule in (*knobs, *table_rows(loaded)):
        style = "" if origin == "default" else "bold"
        table.add_row(*(Text(cell) for cell in (name, shown(rule, value), origin, rule.help)), style=style)
    console().print(table)


def shown(rule: Rule, value: object) -> str:
    """A value as people write it; of secrets only how many there are."""
    if rule.secret:
        return f"{len(value)} {rule.unit}s" if isinstance(value, tuple) else ""
    if rule.unit == "url":
        value = without_password(str(value))
    if rule.unit == "bytes" and isinstance(value, int) and value:
        return human_bytes(value)
    if rule.unit == "price":
        return price_text(value)
    if rule.unit == "seconds":
        return f"{value:g} s"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if value != "" else "(empty)"


def print_version() -> None:
    from tailrace import _native

    console().print(f"tailrace {version('tailrace')}, kernels: {', '.join(_native.variants())}")
