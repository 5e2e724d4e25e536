"""What the commands print: one console, one error line. Rich is imported when something is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

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
