"""`tailrace config check`, `config explain` and `tailrace version`: what this installation would do and why."""

from __future__ import annotations

from importlib.metadata import version

from tailrace.cli.output import console, show_warning
from tailrace.clock import SystemClock
from tailrace.config import Config, Loaded, database_of, warnings
from tailrace.control.explained import rows, shown
from tailrace.control.limits.store import limit_store
from tailrace.database.keeping import Keeping
from tailrace.knobs import Mistakes
from tailrace.observe.otel.collector import Collector


def print_settings(loaded: Loaded) -> None:
    """A table of every setting, those of tenants, classes and rules too; what differs from the default stands out."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in ("setting", "value", "from"):
        table.add_column(title, no_wrap=True)
    table.add_column("meaning", ratio=1)
    for name, value, origin, rule, _ in rows(loaded):
        style = "" if origin == "default" else "bold"
        table.add_row(*(Text(cell) for cell in (name, shown(rule, value), origin, rule.help)), style=style)
    console().print(table)


def print_checked(loaded: Loaded) -> None:
    """They were read without a mistake. What is probably not meant is said on stderr. Raises ConfigError for what only
    shows when it is used: addresses that are none, packages that are missing."""
    _check_addresses(loaded.config)
    for text in warnings(loaded.config):
        show_warning(text)
    policy = loaded.config.policy
    where = loaded.file or "no settings file"
    console().print(
        f"{where}: {len(policy.tenants)} tenants, {len(policy.rules)} rules, nothing is wrong", highlight=False
    )


def _check_addresses(config: Config) -> None:
    from tailrace.database.database import database_url

    database, mistakes = database_of(config.data), Mistakes()
    with mistakes.noted():
        if database:
            database_url(database)
    with mistakes.noted():
        limit_store(config.control, SystemClock(), Keeping(""))
    with mistakes.noted():
        Collector.of(config.observe)
    mistakes.tell()


def print_version() -> None:
    from tailrace import _native

    console().print(f"tailrace {version('tailrace')}, kernels: {', '.join(_native.variants())}")
