"""A bar for each stage on stderr while a benchmark runs; where stderr is no terminal, a line for each stage."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tailrace.bench.record import Record


class Bars:
    """A `Watch`. Use as a context, so that the terminal is left in order."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[seen]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._tokens = self._errors = 0

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def stage(self, name: str, requests: int | None) -> None:
        self._tokens = self._errors = 0
        self._task = self._progress.add_task(name, total=requests, seen="")
        if not self._console.is_terminal:
            self._console.print(f"{name} ...")

    def done(self, record: Record) -> None:
        if self._task is not None:
            self._tokens += record.output_tokens
            self._errors += not record.ok
            errors = f", {self._errors} errors" if self._errors else ""
            self._progress.update(self._task, advance=1, seen=f"{self._tokens} tokens{errors}")
