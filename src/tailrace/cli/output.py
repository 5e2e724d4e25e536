"""What the terminal shows: one console, one error line, progress bars. Rich is imported when something is drawn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn

    from tailrace.errors import TailraceError

EXIT_USER_ERROR = 2


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
def byte_bars() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each stage on stderr, fed with (stage, bytes done, bytes in all)."""
    from rich.progress import DownloadColumn, TransferSpeedColumn

    with _bars(DownloadColumn(binary_units=True), TransferSpeedColumn()) as report:
        yield report


@contextmanager
def fraction_bars() -> Iterator[Callable[[str, float], None]]:
    """A bar for each stage on stderr, fed with (stage, fraction done)."""
    from rich.progress import TaskProgressColumn

    with _bars(TaskProgressColumn()) as report:
        yield lambda stage, fraction: report(stage, round(fraction * 1000), 1000)


@contextmanager
def _bars(*columns: ProgressColumn) -> Iterator[Callable[[str, int, int], None]]:
    """Where stderr is no terminal, a stage is one line and no bar."""
    from rich.progress import BarColumn, Progress, TaskID, TextColumn

    quiet = not sys.stderr.isatty()
    tasks: dict[str, TaskID] = {}
    with Progress(
        TextColumn("{task.description}"), BarColumn(), *columns, console=console(stderr=True), disable=quiet
    ) as bars:

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=None)
                if quiet:
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
