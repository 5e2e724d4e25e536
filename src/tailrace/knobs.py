"""What a setting is: its meaning, what it accepts, and how text or a TOML value becomes one."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from decimal import Decimal
from typing import Any

from tailrace.errors import ConfigError
from tailrace.frozen import frozen

_KINDS = {
    "bytes": "a size such as 4GiB, 512MB or 1048576",
    "seconds": "a time such as 30, 2.5s, 500ms or 1m",
    "price": "an amount of money such as 0.25, of at most 9 decimals and at most 1000000",
}
_BOOLS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_SIZES = {"": 1.0, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_TIMES = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_MOST = 2**53  # of whole numbers: beyond it a float, and so Redis and JSON, would round
_PRICE_DECIMALS, _MOST_PRICE = 9, 10**15  # a price is kept in whole billionths
_SCALES = {"bytes": _SIZES, "seconds": _TIMES}


@frozen
class Rule:
    """What a setting means and accepts. `unit` is "bytes", "seconds", "price", "key", "secret", "url" or nothing;
    bounds are inclusive."""

    help: str
    choices: tuple[str, ...] = ()
    unit: str = ""
    low: float | None = None
    high: float | None = None
    filled: bool = False  # a text that must not be empty
    live: bool = False  # a running server takes another value over

    @property
    def secret(self) -> bool:
        """Whether a value must reach no message, log or page."""
        return self.unit in ("key", "secret")

    def accepts(self, kind: object) -> str:
        """What may be written for a setting of this type, for messages and help."""
        if self.choices:
            return " | ".join(self.choices)
        if kind is bool:
            return "true | false"
        if kind is str or kind == tuple[str, ...]:
            return "text that is not empty" if self.filled else "text"
        return _KINDS.get(self.unit, "a whole number" if kind is int else "a number") + self._range()

    def allows(self, value: object) -> bool:
        if self.choices and value not in self.choices:
            return False
        if self.filled and isinstance(value, str) and not value.strip():
            return False
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return True
        return value >= (self.low or 0) and (self.high is None or value <= self.high)

    def _range(self) -> str:
        if self.low is None and self.high is None:
            return ""
        return f" from {self.low:g} to {self.high:g}" if self.high is not None else f" of at least {self.low:g}"


class Mistakes:
    """All that is wrong with some settings, instead of the first: `with mistakes.noted():` around each."""

    def __init__(self) -> None:
        self._found: list[ConfigError] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        try:
            yield
        except ConfigError as error:
            self._found += error.parts or (error,)

    def tell(self) -> None:
        """Raises ConfigError where there was any."""
        if len(self._found) == 1:
            raise self._found[0]
        if self._found:
            lines = "".join(f"\n  {error.message}" for error in self._found)
            several = ConfigError(f"{len(self._found)} settings are wrong:{lines}", param=self._found[0].param)
            several.parts = tuple(self._found)
            raise several


def knob(default: object, help: str, **rule: Any) -> Any:
    """A dataclass field that carries its Rule."""
    return field(default=default, metadata={"rule": Rule(help, **rule)})


def convert(raw: object, kind: object, rule: Rule) -> object:
    """A raw value as bool, int, float or str. None or ValueError when it does not fit the type."""
    if kind is str:
        return raw if isinstance(raw, str) else None
    if kind is bool:
        return _BOOLS.get(raw.lower()) if isinstance(raw, str) else raw if isinstance(raw, bool) else None
    if isinstance(raw, bool) or not isinstance(raw, (str, int, float)):
        return None
    if rule.unit == "price":
        return _billionths(str(raw))
    number = _number(raw, rule.unit) if isinstance(raw, str) else float(raw)
    if not math.isfinite(number) or (kind is int and (number != int(number) or number > _MOST)):
        return None
    return int(number) if kind is int else number


def _number(text: str, unit: str) -> float:
    """ "4GiB" -> 4294967296.0, "500ms" -> 0.5; ValueError on anything else."""
    match = re.fullmatch(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?|\.[0-9]+)\s*([a-zA-Z]*)\s*", text)
    if match is None:
        raise ValueError(text)
    amount, suffix = float(match[1].replace("_", "")), match[2].lower()
    scales = _SCALES.get(unit, {"": 1.0})
    if unit == "bytes":
        suffix = suffix.removesuffix("b")
    if suffix not in scales:
        raise ValueError(text)
    return amount * scales[suffix]


def _billionths(text: str) -> int | None:
    """Exactly what is written: a float's shortest text is what its author wrote. None for what has no such number."""
    try:
        amount = Decimal(text).scaleb(_PRICE_DECIMALS)
        return int(amount) if 0 <= amount <= _MOST_PRICE and amount == amount.to_integral_value() else None
    except ArithmeticError:
        return None


def price_text(billionths: object) -> str:
    """As it is written in the file."""
    return f"{Decimal(str(billionths)).scaleb(-_PRICE_DECIMALS).normalize():f}"


def without_password(url: str) -> str:
    """For people and logs."""
    return re.sub(r"//[^/?#]*@", "//***@", url)
