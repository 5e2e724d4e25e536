"""Distributions of token counts, from their text forms. Drawn with the caller's random source."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path
from random import Random

from tailrace.bench.options import LENGTH_FORMS
from tailrace.errors import ConfigError
from tailrace.figures.quantities import numbers, wrong

Lengths = Callable[[Random], int]


def parse_lengths(text: str, flag: str, column: str = "") -> Lengths:
    """A function that draws a count of at least 1. `column` is the one to read of a CSV file. Raises ConfigError."""
    kind, _, rest = text.partition(":")
    if kind.isdigit() and not rest:
        kind, rest = "fixed", kind
    makers = {"fixed": _fixed, "uniform": _uniform, "normal": _normal, "lognormal": _lognormal}
    if kind == "file" and rest:
        return _from_file(rest, flag, column)
    if kind not in makers or not rest:
        raise wrong(flag, text, LENGTH_FORMS)
    return makers[kind](rest, flag)


def _fixed(text: str, flag: str) -> Lengths:
    (value,) = numbers(text, 1, flag, "fixed:N")
    return lambda rng: _count(value)


def _uniform(text: str, flag: str) -> Lengths:
    low, high = numbers(text, 2, flag, "uniform:A-B")
    if low > high:
        raise wrong(flag, text, "uniform:A-B with A at most B")
    return lambda rng: _count(rng.randint(round(low), round(high)))


def _normal(text: str, flag: str) -> Lengths:
    mean, deviation = numbers(text, 2, flag, "normal:MEAN,STD")
    return lambda rng: _count(rng.gauss(mean, deviation))


def _lognormal(text: str, flag: str) -> Lengths:
    """MEAN is that of the lengths; SIGMA the deviation of their logarithm."""
    mean, sigma = numbers(text, 2, flag, "lognormal:MEAN,SIGMA")
    if not mean:
        raise wrong(flag, text, "lognormal:MEAN,SIGMA with MEAN above 0")
    mu = math.log(mean) - sigma * sigma / 2
    return lambda rng: _count(rng.lognormvariate(mu, sigma))


def _from_file(path: str, flag: str, column: str) -> Lengths:
    values = _read(Path(path), flag, column)
    return lambda rng: rng.choice(values)


def _read(path: Path, flag: str, column: str) -> list[int]:
    """One number a line, or a CSV with a header that has `column`."""
    try:
        rows = [row for row in csv.reader(path.read_text(encoding="utf-8").splitlines()) if row]
        place = 0
        if rows and not rows[0][0].replace(".", "").isdigit():
            place = rows.pop(0).index(column)
        values = [_count(float(row[place])) for row in rows]
    except (OSError, ValueError, IndexError) as error:
        raise ConfigError(f"{flag} {path}: {error}", param=flag) from error
    if not values:
        raise ConfigError(f"{flag} {path}: there is no length in it", param=flag)
    return values


def _count(value: float) -> int:
    return max(1, round(value))
