"""Charts as one self-contained HTML page: inline SVG, no scripts, nothing loaded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from tailrace.figures.chart import Chart
from tailrace.frozen import frozen

WIDTH, HEIGHT = 460, 280
LEFT, RIGHT, TOP, BOTTOM = 58, 24, 30, 42
COLORS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a")
STYLE = (
    "body{font:14px system-ui,sans-serif;margin:24px;color:#1f2328;background:#fff}h1{font-size:18px}"
    "svg{margin:0 16px 16px 0;font:11px system-ui,sans-serif}.grid{stroke:#d8dee4}.axis{stroke:#57606a}"
    ".title{font-size:13px;font-weight:600}li{color:#9a6700}"
    "table{border-collapse:collapse;margin:0 0 16px}td,th{padding:2px 10px;text-align:right;white-space:nowrap}"
    "th{border-bottom:1px solid #57606a;font-weight:600}tr:nth-child(even){background:#f6f8fa}"
    "td.name,th.name{text-align:left}"
)


@frozen
class Sheet:
    """A table of texts: the first `names` columns stand left, numbers right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: int = 1


def page(title: str, charts: Sequence[Chart], notes: Sequence[str], sheets: Sequence[Sheet] = ()) -> str:
    """Whatever is in the texts, nothing of it is markup."""
    parts = ["<!doctype html>", '<html lang="en"><head><meta charset="utf-8">', f"<title>{escape(title)}</title>"]
    parts += [f"<style>{STYLE}</style></head><body>", f"<h1>{escape(title)}</h1>"]
    parts += [sheet(each) for each in sheets]
    parts += [svg(chart) for chart in charts] or ["<p>No request was answered.</p>"]
    if notes:
        parts += ["<ul>", *(f"<li>{escape(note)}</li>" for note in notes), "</ul>"]
    return "\n".join([*parts, "</body></html>", ""])


def sheet(table: Sheet) -> str:
    def cells(kind: str, texts: Iterable[str]) -> str:
        marks = (' class="name"' if place < table.names else "" for place, _ in enumerate(table.columns))
        return "".join(f"<{kind}{mark}>{escape(text)}</{kind}>" for mark, text in zip(marks, texts, strict=True))

    rows = (f"<tr>{cells('td', row)}</tr>" for row in table.rows)
    return "\n".join(["<table>", f"<tr>{cells('th', table.columns)}</tr>", *rows, "</table>"])


def svg(chart: Chart) -> str:
    scale = _Scale(chart)
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size} aria-label="{escape(chart.title)}">'
    return "\n".join([head, *_frame(chart, scale), *_lines(chart, scale), *_legend(chart), "</svg>"])


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) from `low` to at least `high`."""
    span = high - low
    if span < 1e-6 * max(high, 1.0):
        span = 1.0
    power = 10.0 ** math.floor(math.log10(span / wanted))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor * wanted >= span)
    first, last = math.floor(low / step), math.ceil(high / step - 1e-9)
    return [round(step * i, 10) for i in range(first, max(last, first + 1) + 1)]


class _Scale:
    """Data to pixels."""

    def __init__(self, chart: Chart) -> None:
        points = [point for line in chart.lines.values() for point in line] or [(0.0, 0.0)]
        xs = [x for x, _ in points]
        self.x_ticks = ticks(0.0 if min(xs) < 0.5 * max(xs) else min(xs), max(xs))
        self.y_ticks = ticks(0.0, max(y for _, y in points))

    def x(self, value: float) -> float:
        low, high = self.x_ticks[0], self.x_ticks[-1]
        return round(LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        low, high = self.y_ticks[0], self.y_ticks[-1]
        return round(HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM), 1)


def _frame(chart: Chart, scale: _Scale) -> Iterator[str]:
    yield f'<text class="title" x="{LEFT}" y="16">{escape(chart.title)}</text>'
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for value in scale.y_ticks:
        y = scale.y(value)
        yield f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y}" y2="{y}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{value:g}</text>'
    for value in scale.x_ticks:
        yield f'<text x="{scale.x(value)}" y="{bottom + 15}" text-anchor="middle">{value:g}</text>'
    yield f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>'
    yield f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(chart.x)}</text>'
    middle = (TOP + bottom) / 2
    yield f'<text x="12" y="{middle}" text-anchor="middle" transform="rotate(-90 12 {middle})">{escape(chart.y)}</text>'
    if chart.mark is not None:
        x = scale.x(chart.mark)
        yield f'<line x1="{x}" x2="{x}" y1="{TOP}" y2="{bottom}" stroke="#57606a" stroke-dasharray="4 3"/>'


def _lines(chart: Chart, scale: _Scale) -> Iterator[str]:
    for number, points in enumerate(chart.lines.values()):
        color = COLORS[number % len(COLORS)]
        places = [(scale.x(x), scale.y(y)) for x, y in points]
        path = " ".join(f"{x},{y}" for x, y in places)
        yield f'<polyline fill="none" stroke="{color}" stroke-width="1.6" points="{path}"/>'
        if chart.dots:
            yield from (f'<circle cx="{x}" cy="{y}" r="2.2" fill="{color}"/>' for x, y in places)


def _legend(chart: Chart) -> Iterator[str]:
    if len(chart.lines) < 2:
        return
    for number, name in enumerate(chart.lines):
        y = HEIGHT - BOTTOM - 10 - 15 * (len(chart.lines) - 1 - number)
        color = COLORS[number % len(COLORS)]
        yield f'<text x="{WIDTH - RIGHT - 6}" y="{y}" text-anchor="end" fill="{color}">{escape(name)}</text>'
