"""A bar over the prompts of one call, with its speed. Counting is two additions; the bar looks ten times a second."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from tailrace.clock import Clock


class Meter:
    """Prompts done and tokens made. `tell` is the Core's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = clock.now()
        self.tokens = 0
        self.done = 0

    def tell(self, tokens: int, done: bool) -> None:
        self.tokens += tokens
        self.done += done

    def __str__(self) -> str:
        seconds = self._clock.now() - self._started
        return f"{self.tokens / seconds:,.0f} tok/s" if seconds > 0 else ""


class _Speed(ProgressColumn):
    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    def render(self, task: Task) -> Text:
        task.completed = self._meter.done
        return Text(str(self._meter))


@contextmanager
def metered(what: str, total: int, clock: Clock, *, show: bool) -> Iterator[Meter]:
    """Drawn on stderr while open, if that is a terminal."""
    meter = Meter(clock)
    columns = (
        _Speed(meter),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not (show and sys.stderr.isatty())) as bar:
        task = bar.add_task(what, total=total)
        yield meter
        bar.update(task, completed=meter.done)
