"""What the commands print: one console, one error line. Rich is imported when something is drawn."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.errors import ConfigError, TailraceError

if TYPE_CHECKING:
    from rich.console import Console

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130  # by Ctrl-C


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def bold(text: str) -> str:
    """For plain lines, which a start prints without waiting for Rich."""
    return f"\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() else text


@contextmanager
def user_errors() -> Iterator[None]:
    """A user's mistake ends in one line and exit status 2, never in a traceback."""
    try:
        yield
    except TailraceError as error:
        show_error(error)
        raise SystemExit(EXIT_USER_ERROR) from None


def show_error(error: TailraceError) -> None:
    """One line that says what is wrong and what to change."""
    from rich.text import Text

    console(stderr=True).print(Text(f"error: {error.message}", style="bold red"))


def show_warning(message: str) -> None:
    from rich.text import Text

    console(stderr=True).print(Text(f"warning: {message}", style="yellow"))


def check_files(json: str, plot: str) -> None:
    """A result must not be lost after an hour because its file cannot be written. Raises ConfigError."""
    from tailrace.figures.chart import check_plot

    if plot:
        check_plot(Path(plot))
    for flag, name in (("--json", json), ("--plot", plot)):
        if name and not Path(name).absolute().parent.is_dir():
            raise ConfigError(f"{flag} {name}: there is no folder {Path(name).absolute().parent}", param=flag)
