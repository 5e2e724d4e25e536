"""Every setting as a row: its name, value, where that came from, what it means. Secrets are not in any.

The tables - tenants, classes, rules, prices - are rows like the knobs, named as errors name them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from tailrace.config import Loaded
from tailrace.knobs import Rule, price_text, without_password
from tailrace.units import human_bytes

_PLAIN = Rule("")


class Row(NamedTuple):
    name: str
    value: object
    origin: str
    rule: Rule
    live: bool = True  # a running server takes another value over


def rows(loaded: Loaded) -> Iterator[Row]:
    for setting, value, origin in loaded.rows():
        yield Row(setting.name, value, origin, setting.rule, setting.rule.live)
    yield from table_rows(loaded)


def table_rows(loaded: Loaded) -> Iterator[Row]:
    """Every value of the policy, those that the file leaves out too."""
    yield from _rows(loaded.config.policy, loaded.tables, "", loaded.file)


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


def _rows(table: Any, given: Mapping[str, Any], where: str, file: str) -> Iterator[Row]:
    for each in fields(table):
        key = each.metadata.get("key", each.name)
        name, value = f"{where}.{key}" if where else key, getattr(table, each.name)
        if isinstance(value, Mapping):  # of prices, which stand beside the currency
            for model, price in value.items():
                yield from _rows(price, given.get(model, {}), f"{where}.{model}", file)
        elif is_dataclass(value):
            yield from _rows(value, given.get(key, {}), name, file)
        elif isinstance(value, tuple) and value and is_dataclass(value[0]):
            for place, (item, stated) in enumerate(zip(value, given.get(key) or ({},) * len(value), strict=True)):
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
