"""`tailrace export`: the ledger as CSV or Parquet, written as it is read. A file appears complete or not at all."""

from __future__ import annotations

import asyncio
import csv
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from tailrace.cli.output import bold
from tailrace.config import DataConfig, database_of
from tailrace.database.database import Database
from tailrace.database.export import COLUMNS, Wanted, pages
from tailrace.errors import ConfigError

FORMATS = ("csv", "parquet")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a text begins with that a spreadsheet computes


class Writer(Protocol):
    def write(self, rows: Sequence[Sequence[Any]]) -> None: ...

    def close(self) -> None: ...


def run_export(config: DataConfig, file: str, kind: str, wanted: Wanted) -> None:
    """Raises ConfigError, Unavailable."""
    url, path = database_of(config), Path(file)
    if not url:
        raise ConfigError("nothing is kept (--database none): there is nothing to export", param="data.database")
    if kind not in FORMATS:
        raise ConfigError(f"--format {kind}: accepted is {' | '.join(FORMATS)}", param="--format")
    if kind == "parquet" and find_spec("pyarrow") is None:
        raise ConfigError("Parquet needs a library: pip install 'tailrace[parquet]'", param="--format")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{file}: there is no folder {path.absolute().parent}", param="FILE")
    rows = asyncio.run(_export(url, path, kind, wanted))
    print(f"{bold(str(rows))} rows in {path}")


def moment(text: str, flag: str) -> float | None:
    """Seconds since the epoch of `2027-01-31` or `2027-01-31T12:00:00+01:00`, in UTC where no zone is said; None of
    nothing. Raises ConfigError."""
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{flag} {text}: expected is a date or time, as 2027-01-31", param=flag) from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


async def _export(url: str, path: Path, kind: str, wanted: Wanted) -> int:
    database = Database(url)
    if database.sqlite and not database.exists():
        raise ConfigError(f"there is no database {database}", param="data.database")
    part, rows = path.with_name(path.name + ".part"), 0
    try:
        await database.open()
        writer: Writer = _Csv(part) if kind == "csv" else _Parquet(part)
        try:
            async for page in pages(database, wanted):
                writer.write(page)
                rows += len(page)
        finally:
            writer.close()
        os.replace(part, path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", param="FILE") from error
    finally:
        part.unlink(missing_ok=True)
        await database.close()
    return rows


class _Csv:
    """What is not known is empty, as empty texts are. A text that a spreadsheet would take for a formula stands behind
    an apostrophe: callers choose some of them."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "w", encoding="utf-8", newline="")  # noqa: SIM115 - closed by `close`
        self._rows = csv.writer(self._file)
        self._rows.writerow([column.name for column in COLUMNS])

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        self._rows.writerows([[_inert(value) for value in row] for row in rows])

    def close(self) -> None:
        self._file.close()


def _inert(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


class _Parquet:
    """A row group for each page."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        kinds = {str: pa.string(), float: pa.float64(), int: pa.int64(), bool: pa.bool_()}
        self._arrow = pa
        self._schema = pa.schema([(column.name, kinds[column.type.python_type]) for column in COLUMNS])
        self._file = pq.ParquetWriter(path, self._schema)

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        values = zip(*rows, strict=True)
        columns = [self._arrow.array(each, kind) for each, kind in zip(values, self._schema.types, strict=True)]
        self._file.write_table(self._arrow.Table.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        self._file.close()
