"""Progress bars on stderr; where stderr is no terminal, each stage is a line. Rich is imported when a bar is drawn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_Report = Callable[[str, int, int], None]


@contextmanager
def byte_bars(show: bool = True) -> Iterator[_Report]:
    """A bar for each stage, fed with (stage, bytes done, bytes in all). `show` False: nothing is written."""
    with _bars(show, of_bytes=True) as report:
        yield report


@contextmanager
def fraction_bars(show: bool = True) -> Iterator[Callable[[str, float], None]]:
    """A bar for each stage, fed with (stage, fraction done). `show` False: nothing is written."""
    with _bars(show, of_bytes=False) as report:
        yield lambda stage, fraction: report(stage, round(fraction * 1000), 1000)


@contextmanager
def _bars(show: bool, *, of_bytes: bool) -> Iterator[_Report]:
    if show and sys.stderr.isatty():
        with _drawn(of_bytes) as report:
            yield report
    else:
        yield _said() if show else _silent


@contextmanager
def _drawn(of_bytes: bool) -> Iterator[_Report]:
    from rich import progress as rich  # noqa: PLC0415 - a start that draws nothing does not wait for it
    from rich.console import Console  # noqa: PLC0415

    many = (rich.DownloadColumn(binary_units=True), rich.TransferSpeedColumn())
    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        *(many if of_bytes else (rich.TaskProgressColumn(),)),
    )
    tasks: dict[str, rich.TaskID] = {}
    with rich.Progress(*columns, console=Console(stderr=True, highlight=False, soft_wrap=True)) as bars:

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=None)
            bars.update(tasks[stage], completed=done, total=total or None)

        yield report


def _said() -> _Report:
    seen: set[str] = set()

    def report(stage: str, done: int, total: int) -> None:
        if stage not in seen:
            seen.add(stage)
            print(f"{stage} ...", file=sys.stderr, flush=True)

    return report


def _silent(stage: str, done: int, total: int) -> None:
    pass
