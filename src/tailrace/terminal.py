"""Progress bars on stderr; where stderr is no terminal, each stage is a line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, TaskID, TaskProgressColumn, TextColumn
from rich.progress import TransferSpeedColumn as SpeedColumn


@contextmanager
def byte_bars(show: bool = True) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each stage, fed with (stage, bytes done, bytes in all). `show` False: nothing is written."""
    with _bars(show, DownloadColumn(binary_units=True), SpeedColumn()) as report:
        yield report


@contextmanager
def fraction_bars(show: bool = True) -> Iterator[Callable[[str, float], None]]:
    """A bar for each stage, fed with (stage, fraction done). `show` False: nothing is written."""
    with _bars(show, TaskProgressColumn()) as report:
        yield lambda stage, fraction: report(stage, round(fraction * 1000), 1000)


@contextmanager
def _bars(show: bool, *columns: ProgressColumn) -> Iterator[Callable[[str, int, int], None]]:
    drawn = show and sys.stderr.isatty()
    tasks: dict[str, TaskID] = {}
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    with Progress(TextColumn("{task.description}"), BarColumn(), *columns, console=console, disable=not drawn) as bars:

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=None)
                if show and not drawn:
                    print(f"{stage} ...", file=sys.stderr, flush=True)
            bars.update(tasks[stage], completed=done, total=total or None)

        yield report
