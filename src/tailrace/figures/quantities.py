"""Texts to quantities, in the words of the flag they came from. Refuses with ConfigError naming the flag."""

from __future__ import annotations

import re

from tailrace.errors import ConfigError

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def wrong(flag: str, value: object, accepted: str) -> ConfigError:
    return ConfigError(f"{flag} {value!r}: accepted is {accepted}", param=flag)


def seconds(text: str, flag: str) -> float:
    """ "500ms", "2s", "1.5m" or plain seconds; above 0."""
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*(us|ms|s|min|m|h|)", text.strip())
    if match is None or float(match[1]) <= 0:
        raise wrong(flag, text, "a time above 0, such as 500ms, 2s or 1.5m")
    return float(match[1]) * _SECONDS[match[2]]


def numbers(text: str, count: int, flag: str, form: str) -> list[float]:
    """`count` numbers separated by commas, or by `-` where the form has one."""
    parts = re.split(r"[,-]" if "-" in form else ",", text)
    try:
        values = [float(part) for part in parts]
    except ValueError:
        values = []
    if len(values) != count or any(not 0 <= value < 1e9 for value in values):
        raise wrong(flag, text, form)
    return values
