"""Recorded traffic: arrival times, lengths and hashed prefixes, from the CSV and JSONL forms that are published.

Columns are found by name, so the normalised samples (`arrival_s`, `input_tokens`, `output_tokens`) and the originals
(`TIMESTAMP`/`ContextTokens`/`GeneratedTokens`; `timestamp`/`input_length`/`output_length` in milliseconds) both read.
What cannot be read is refused with its line and column.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from tailrace.errors import ConfigError
from tailrace.frozen import frozen

_MOST_TOKENS = 10**12
_LONGEST = 1e9  # seconds: beyond them a float does not tell two steps apart
HASH_BLOCK = 512  # tokens that one hash id stands for

_INPUT = ("input_tokens", "input_length", "ContextTokens")
_OUTPUT = ("output_tokens", "output_length", "GeneratedTokens")
_CLOCKS: dict[str, Callable[[Any], float]] = {
    "arrival_s": float,
    "timestamp": lambda value: float(value) / 1000,
    "TIMESTAMP": lambda value: datetime.fromisoformat(value[:26]).timestamp(),
}


@frozen
class TraceRow:
    """`arrival`: seconds from the first row; None: the file has lengths only. Equal `blocks` are equal text."""

    arrival: float | None
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    block_tokens: int = HASH_BLOCK
    client: str = ""


def read_trace(path: Path, flag: str = "--trace") -> list[TraceRow]:
    """All rows in order of arrival. Raises ConfigError naming the line that cannot be read."""
    try:
        data = path.read_bytes()
        lines = _json_lines(data) if path.suffix in (".jsonl", ".json") else _csv_lines(data)
        rows = []
        for number, line in lines:
            try:
                rows.append(_row(line))
            except (KeyError, ValueError, TypeError) as error:
                raise ConfigError(f"{flag} {path}, line {number}: {_said(error)}", param=flag) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{flag} {path}: {error}", param=flag) from error
    if not rows:
        raise ConfigError(f"{flag} {path}: there are no requests in it", param=flag)
    found = _from_zero(rows)
    if (found[-1].arrival or 0.0) > _LONGEST:
        raise ConfigError(f"{flag} {path}: from the first arrival to the last it is over {_LONGEST:g} s", param=flag)
    return found


def scaled(row: TraceRow, factor: float) -> TraceRow:
    """Lengths and prefix blocks multiplied, nothing below 1 token."""
    if factor == 1.0:
        return row
    return replace(
        row,
        input_tokens=max(1, round(row.input_tokens * factor)),
        output_tokens=max(1, round(row.output_tokens * factor)),
        block_tokens=max(1, round(row.block_tokens * factor)),
    )


def _said(error: Exception) -> str:
    return f"there is no column {error.args[0]}" if isinstance(error, KeyError) else str(error)


def _json_lines(data: bytes) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(data.splitlines(), start=1):
        if line.strip():
            try:
                value = orjson.loads(line)
            except orjson.JSONDecodeError:
                value = None
            yield number, value if isinstance(value, dict) else {}


def _csv_lines(data: bytes) -> Iterator[tuple[int, Mapping[str, Any]]]:
    yield from enumerate(csv.DictReader(data.decode("utf-8-sig").splitlines()), start=2)


def _row(line: Mapping[str, Any]) -> TraceRow:
    output = _count(line, *_OUTPUT)
    tokens = _input(line)
    blocks = tuple(_number(block, "hash_ids", 2**64) for block in line.get("hash_ids") or ())
    return TraceRow(_arrival(line), max(1, tokens), max(1, output), blocks, client=str(line.get("client") or ""))


def _input(line: Mapping[str, Any]) -> int:
    """Images count as so many text tokens: their cost to the server, not their content, is what can be replayed."""
    if "text_tokens" in line:
        images = [part for part in str(line.get("image_tokens") or "").split(";") if part]
        return _count(line, "text_tokens") + sum(_number(part, "image_tokens") for part in images)
    return _count(line, *_INPUT)


def _count(line: Mapping[str, Any], *names: str) -> int:
    """The first column there is of these."""
    for name in names:
        if name in line:
            return _number(line[name], name)
    raise KeyError(" or ".join(names))


def _number(value: Any, column: str, most: int = _MOST_TOKENS) -> int:
    """A whole number from 0."""
    try:
        number = int(value)
        odd = isinstance(value, bool) or (isinstance(value, float) and number != value)
    except (ValueError, TypeError):
        odd = True
    if odd or not 0 <= number <= most:
        raise ValueError(f"column {column} is {value!r:.60}: accepted is a whole number from 0 to {most:g}")
    return number


def _arrival(line: Mapping[str, Any]) -> float | None:
    for column, seconds in _CLOCKS.items():
        if column in line:
            try:
                moment = seconds(line[column])
            except (ValueError, TypeError):
                moment = math.nan
            if isinstance(line[column], bool) or not math.isfinite(moment):
                raise ValueError(f"column {column} is {line[column]!r}: accepted is a time")
            return moment
    return None


def _from_zero(rows: list[TraceRow]) -> list[TraceRow]:
    times = [row.arrival for row in rows if row.arrival is not None]
    if len(times) < len(rows):
        return [replace(row, arrival=None) for row in rows]
    start = min(times)
    return sorted(
        (replace(row, arrival=(row.arrival or 0.0) - start) for row in rows), key=lambda row: row.arrival or 0
    )
