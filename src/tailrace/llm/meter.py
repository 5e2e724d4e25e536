"""A bar over the prompts of one call, with its speed. Counting is two additions; the bar looks ten times a second."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from tailrace.clock import Clock


class Meter:
    """Tokens made, and tokens of prompts that are done. `tell` is the Core's."""

    def __init__(self, clock: Clock, advance: Callable[[], None]) -> None:
        self._clock = clock
        self._started = clock.now()
        self._advance = advance
        self.made = 0
        self.read = 0

    def tell(self, made: int, prompt: int) -> None:
        self.made += made
        if prompt:
            self.read += prompt
            self._advance()

    def __str__(self) -> str:
        """Generated tokens a second; of a call that generates none, prompt tokens."""
        seconds = self._clock.now() - self._started
        return f"{(self.made or self.read) / seconds:,.0f} tok/s" if seconds > 0 else ""


class _Speed(ProgressColumn):
    """The meter's own words, which need no update of the task."""

    def __init__(self) -> None:
        super().__init__()
        self.meter: Meter | None = None

    def render(self, task: Task) -> Text:
        return Text(str(self.meter or ""))


@contextmanager
def metered(what: str, total: int, clock: Clock, *, show: bool) -> Iterator[Meter]:
    """Drawn on stderr while open, if that is a terminal."""
    speed = _Speed()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), speed, TimeRemainingColumn())
    drawn = show and sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), disable=not drawn) as bar:
        task = bar.add_task(what, total=total)
        speed.meter = Meter(clock, lambda: bar.advance(task))
        yield speed.meter
