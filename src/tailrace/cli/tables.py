"""The tables of the settings - tenants, classes, rules, prices - as rows like the knobs, named as errors name them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from tailrace.config import Loaded
from tailrace.knobs import Rule

_PLAIN = Rule("")


class Row(NamedTuple):
    name: str
    value: object
    origin: str
    rule: Rule


def table_rows(loaded: Loaded) -> Iterator[Row]:
    """Every value of the policy, those that the file leaves out too."""
    yield from _rows(loaded.config.policy, loaded.tables, "", loaded.file)


def _rows(table: Any, given: Mapping[str, Any], where: str, file: str) -> Iterator[Row]:
    for each in fields(table):
        key = each.metadata.get("key", each.name)
        name, value = f"{where}.{key}" if where else key, getattr(table, each.name)
        if isinstance(value, Mapping):  # of prices, which stand beside the currency
            for model, price in value.items():
                yield from _rows(price, given[model], f"{where}.{model}", file)
        elif is_dataclass(value):
            yield from _rows(value, given.get(key, {}), name, file)
        elif isinstance(value, tuple) and value and is_dataclass(value[0]):
            for place, (item, stated) in enumerate(zip(value, given[key], strict=True)):
                yield from _rows(item, stated, f"{name}[{place}]", file)
        else:
            rule = each.metadata.get("rule", _PLAIN)
            yield Row(name, _readable(each, value), file if key in given else "default", rule)


def _readable(each: Field[Any], value: Any) -> object:
    if each.name == "expires":
        return datetime.fromtimestamp(value, UTC).isoformat() if value else "never"
    if each.name == "hash":
        return "(kept)"
    if value is None:
        return "either"
    return ", ".join(value) if isinstance(value, tuple) else value
