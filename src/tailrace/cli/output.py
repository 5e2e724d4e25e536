"""What the terminal shows: one console, one error line, one progress bar. Rich is imported when something is drawn."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console

    from tailrace.errors import TailraceError

EXIT_USER_ERROR = 2


class Progress(Protocol):
    """Called as work goes on; `total` 0 means not known."""

    def __call__(self, stage: str, done: int, total: int) -> None: ...


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def show_error(error: TailraceError) -> None:
    """One line that says what is wrong and what to change."""
    from rich.text import Text

    console(stderr=True).print(Text(f"error: {error.message}", style="bold red"))


def show_warning(message: str) -> None:
    from rich.text import Text

    console(stderr=True).print(Text(f"warning: {message}", style="yellow"))


@contextmanager
def progress_bar(*, bytes_shown: bool = True) -> Iterator[Progress]:
    """A bar per stage on stderr; silent where stderr is no terminal, apart from one line a stage."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    count = DownloadColumn(binary_units=True) if bytes_shown else TextColumn("{task.completed:.0f}/{task.total:.0f}")
    columns = (TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn())
    with Bars(*columns, console=console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bars:
        tasks = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total or None)
                if bars.disable:
                    print(f"{stage} ...", file=sys.stderr, flush=True)
            bars.update(tasks[stage], completed=done, total=total or None)

        yield report


def human_bytes(count: float) -> str:
    """ "134.5 MiB": binary units, one decimal."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
