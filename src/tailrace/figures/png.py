"""Charts as one picture, by matplotlib, which is an extra."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from tailrace.figures.chart import Chart


def draw_png(path: Path, title: str, charts: Sequence[Chart]) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 - `check_plot` has seen that it is there

    rows = max(1, math.ceil(len(charts) / 2))
    figure = Figure(figsize=(12, 4 * rows), layout="constrained")
    figure.suptitle(title)
    for number, chart in enumerate(charts, start=1):
        axes = figure.add_subplot(rows, 2, number)
        for name, points in chart.lines.items():
            axes.plot([x for x, _ in points], [y for _, y in points], "o-" if chart.dots else "-", ms=3, label=name)
        if chart.mark is not None:
            axes.axvline(chart.mark, color="grey", linestyle="--")
        axes.set(title=chart.title, xlabel=chart.x, ylabel=chart.y, ylim=(0, None))
        axes.grid(alpha=0.3)
        if len(chart.lines) > 1:
            axes.legend()
    figure.savefig(path, dpi=110)
