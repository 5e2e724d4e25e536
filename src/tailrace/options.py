"""Flags of a command as the fields of a dataclass, each described once. The command line makes its flags of them."""

from __future__ import annotations

from dataclasses import field, fields
from typing import Any

from tailrace.errors import ConfigError


def flag(default: Any, help: str, metavar: str = "", choices: tuple[str, ...] = (), many: bool = False) -> Any:
    """`many`: may be repeated; the field is a tuple."""
    metadata = {"help": help, "metavar": metavar or "|".join(choices), "choices": choices, "many": many}
    return field(default=default, metadata=metadata)


def dashed(name: str) -> str:
    return "--" + name.replace("_", "-")


def check_choices(options: Any) -> None:
    """Raises ConfigError for a value that is none of its field's choices."""
    for spec in fields(options):
        choices, value = spec.metadata["choices"], getattr(options, spec.name)
        for one in value if spec.metadata["many"] else (value,):
            if choices and one not in choices:
                flag_name = dashed(spec.name)
                raise ConfigError(f"{flag_name} {one!r}: accepted is {', '.join(choices)}", param=flag_name)


def check_positive(options: Any, *names: str) -> None:
    """Raises ConfigError for numbers that are there and not above 0."""
    for name in names:
        value = getattr(options, name)
        if value is not None and not 0 < value < 1e9:
            raise ConfigError(f"{dashed(name)} {value}: accepted is a number above 0", param=dashed(name))
