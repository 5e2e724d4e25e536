"""`tailrace report`: what the ledger says, as tables, as JSON, or as a page with charts that loads nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tailrace.cli.output import console
from tailrace.config import Loaded, database_of
from tailrace.control.report.made import gather
from tailrace.control.report.question import Question, question
from tailrace.control.report.report import ORDER, Report
from tailrace.errors import ConfigError
from tailrace.figures.chart import Chart, Points
from tailrace.figures.svg import Sheet, page

FORMATS = ("table", "json", "html")
_LATENCIES = (("queue_ms", "queue"), ("ttft_ms", "TTFT"), ("tpot_ms", "TPOT"), ("e2e_ms", "E2E"))
_POINTS = ("p50", "p95", "p99")
_LINES = 6  # of a chart: the worst groups
_WIDE = 10_000  # characters: a line that is too long for a terminal goes on in its next one

Columns = dict[str, Callable[[Any], str]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """As the command line has them."""

    since: str
    until: str
    by: str
    tenant: str
    form: str
    output: str


def run_report(loaded: Loaded, wanted: Wanted) -> None:
    """Raises ConfigError, Unavailable."""
    if wanted.form not in FORMATS:
        raise ConfigError(f"--format {wanted.form!r}: accepted is {' | '.join(FORMATS)}", param="--format")
    try:
        asked = question(wanted.since, wanted.until, wanted.by, wanted.tenant, time.time())
    except ConfigError as error:
        raise ConfigError(f"--{error.message}", param=f"--{error.param}") from None
    url = database_of(loaded.config.data)
    _check(url)
    report = asyncio.run(_read(url, asked))
    text = _written(report, loaded.config.policy.prices.currency, wanted.form)
    if not wanted.output:
        print(text, end="")
        return
    try:
        Path(wanted.output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--output {wanted.output}: {error.strerror or error}", param="--output") from error


def _check(url: str) -> None:
    """Nothing is made where there is nothing to report on."""
    from tailrace.database.database import database_url

    if not url:
        raise ConfigError("--database none: there is no ledger to report on", param="--database")
    place = database_url(url)
    if place.get_backend_name() == "sqlite" and not Path(place.database or "").is_file():
        raise ConfigError(f"--database: there is no file {place.database}; has a server run?", param="--database")


async def _read(url: str, asked: Question) -> Report:
    from tailrace.database.database import Database
    from tailrace.database.reporting import Reporting

    database = Database(url)
    try:
        await database.open()
        return await gather(Reporting(database), asked)
    finally:
        await database.close()


def _written(report: Report, currency: str, form: str) -> str:
    if form == "json":
        import orjson

        return orjson.dumps(report.data(currency), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()
    data = report.data(currency)
    if form == "html":
        return page(title(data), list(charts(report, data)), notes(data), sheets(data))
    return _table(data)


def title(data: dict[str, Any]) -> str:
    whose = f" of {data['tenant']}" if data["tenant"] else ""
    return f"Requests{whose} from {data['since']} to {data['until']}"


def notes(data: dict[str, Any]) -> list[str]:
    """What the numbers are."""
    return [
        f"Groups stand {data['order']}.",
        f"Percentiles are {data['percentiles']}: waits of all that were let in, times to the first token (TTFT) of all "
        "that got one, times to the end (E2E) of those that came to a good one. Times are P50/P95/P99 in milliseconds.",
        "A request belongs to the day in which it came.",
    ]


def sheets(data: dict[str, Any]) -> list[Sheet]:
    """Latencies, then work and what came of it: the total first."""
    by = tuple(data["by"])
    named = [(("all", *[""] * (len(by) - 1)), data["total"])]
    named += [(tuple(_shown(group["group"][name]) for name in by), group) for group in data["groups"]]
    latencies: Columns = {
        "requests": lambda each: str(each["requests"]),
        **{name: partial(_points, key=key) for key, name in _LATENCIES},
    }
    outcomes: Columns = {name: partial(_outcome, name=name) for name in data["total"]["outcomes"]}
    work: Columns = {**outcomes, **_WORK, data["currency"]: _money, "in time": _in_time, "success": _success}
    return [_sheet(by, named, columns) for columns in (latencies, work)]


def _sheet(by: tuple[str, ...], named: list[tuple[tuple[str, ...], Any]], columns: Columns) -> Sheet:
    """Without columns that say nothing of anybody."""
    rows = [(*names, *(text(each) for text in columns.values())) for names, each in named]
    titles = (*by, *columns)
    kept = [place for place in range(len(titles)) if place < len(by) or any(row[place] for row in rows)]
    cells = tuple(tuple(row[place] for place in kept) for row in rows)
    return Sheet(tuple(titles[place] for place in kept), cells, len(by))


def charts(report: Report, data: dict[str, Any]) -> Iterator[Chart]:
    """How waits are spread over the worst groups, and what came and went over time."""
    worst = [(" ".join(key) or "all", group) for key, group, _ in report.worst_first()][:_LINES]
    for place, (_, name) in enumerate(_LATENCIES):
        lines = {each: points for each, group in worst if (points := group.latencies[place].points())}
        if lines:
            yield Chart(f"{name}: part of the requests", "milliseconds", "part", lines)
    slots = data["over_time"]
    if slots:
        first = slots[0]["at"]
        for key, name in (("ttft_ms", "TTFT"), ("queue_ms", "queue")):
            lines = {point: [_at(slot, first, slot[key][point]) for slot in slots if slot[key]] for point in _POINTS}
            if lines["p50"]:
                yield Chart(f"{name} over time", "hours", "milliseconds", lines, dots=True)
        outcomes = sorted({name for slot in slots for name in slot["outcomes"]})
        counts: dict[str, Points] = {
            name: [_at(slot, first, slot["outcomes"].get(name, 0)) for slot in slots] for name in outcomes
        }
        yield Chart("requests over time", "hours", "requests", counts, dots=True)
        money = {data["currency"]: [_at(slot, first, slot["money"]) for slot in slots]}
        yield Chart(f"{data['currency']} over time", "hours", data["currency"], money, dots=True)


def _at(slot: dict[str, Any], first: float, value: float) -> tuple[float, float]:
    return (slot["at"] - first) / 3600, value


def _table(data: dict[str, Any]) -> str:
    from rich.text import Text

    from tailrace.figures.table import numbers_table

    out = console()
    out.width = _WIDE
    with out.capture() as captured:
        out.print(Text(title(data), style="bold"))
        out.print(Text(f"{ORDER}\nmilliseconds: P50/P95/P99, {data['percentiles']}", style="dim"))
        for each in sheets(data):
            table = numbers_table(*each.columns)
            for column in table.columns[: each.names]:
                column.justify = "left"
            for row in each.rows:
                table.add_row(*(Text(cell) for cell in row))
            out.print()
            out.print(table)
    return captured.get()


def _points(each: dict[str, Any], key: str) -> str:
    values = each[key]
    return "" if values is None else "/".join(_short(values[point]) for point in _POINTS)


def _short(milliseconds: float) -> str:
    return f"{milliseconds:.0f}" if milliseconds >= 10 else f"{milliseconds:.1f}"


def _outcome(each: dict[str, Any], name: str) -> str:
    return str(each["outcomes"].get(name, 0))


def _drafts(each: dict[str, Any]) -> str:
    tokens = each["tokens"]
    return f"{tokens['accepted']}/{tokens['drafted']}" if tokens["drafted"] else ""


def _money(each: dict[str, Any]) -> str:
    return f"{each['money']:.6f}".rstrip("0").rstrip(".") if each["money"] else ""


def _in_time(each: dict[str, Any]) -> str:
    return _part(each["deadlines"]["met"], each["deadlines"]["had"])


def _success(each: dict[str, Any]) -> str:
    return _part(each["success"]["succeeded"], each["success"]["told"])


def _part(good: int, of: int) -> str:
    return f"{good / of:.1%} of {of}" if of else ""


def _shown(text: str) -> str:
    """A name on a terminal: nothing in it moves the cursor."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text) or "-"


_WORK: Columns = {
    "prompt": lambda each: str(each["tokens"]["prompt"]),
    "cached": lambda each: str(each["tokens"]["cached"]),
    "output": lambda each: str(each["tokens"]["output"]),
    "accepted/drafted": _drafts,
    "device s": lambda each: f"{each['device_seconds']:.1f}",
}
