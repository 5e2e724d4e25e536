"""Tables of measured numbers for the terminal: what reports of runs and of simulations share."""

from __future__ import annotations

from typing import Any

from rich.table import Table


def numbers_table(first: str, *columns: str) -> Table:
    """No frame, so that it is easily copied; numbers stand right."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def cell(values: dict[str, Any] | None, key: str) -> str:
    """One number of a distribution; empty where nothing was measured."""
    return "" if values is None else number(values[key])


def number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"
