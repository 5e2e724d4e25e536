"""What is drawn of results, as plain series over axes: one chart serves the page (`svg`) and the picture (`png`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

from tailrace.errors import ConfigError
from tailrace.frozen import frozen

Points = list[tuple[float, float]]
MOST_POINTS = 400  # of one line: more cannot be seen


@frozen
class Chart:
    """Lines by name over one pair of axes. `mark`: an x to point out. Lines of `dots` are drawn with their points."""

    title: str
    x: str
    y: str
    lines: dict[str, Points]
    mark: float | None = None
    dots: bool = False


def cumulated(values: Iterable[float]) -> Points:
    """The empirical distribution function, thinned evenly; both ends stay."""
    ordered = sorted(values)
    last = len(ordered) - 1
    kept = range(last + 1) if last < MOST_POINTS else [round(i * last / MOST_POINTS) for i in range(MOST_POINTS + 1)]
    return [(ordered[i], (i + 1) / (last + 1)) for i in kept]


def check_plot(path: Path) -> None:
    """Raises ConfigError when `draw` could not write such a file."""
    if path.suffix not in (".html", ".png"):
        raise ConfigError(f"--plot {str(path)!r}: accepted is a file ending in .html or .png", param="--plot")
    if path.suffix == ".png" and find_spec("matplotlib") is None:
        raise ConfigError(
            f"--plot {path}: pictures need matplotlib: pip install 'tailrace[plots]' (an .html file needs nothing)",
            param="--plot",
        )


def draw(path: Path, title: str, charts: Sequence[Chart], notes: Sequence[str] = ()) -> None:
    """Write `path`, whose ending says how. Raises ConfigError."""
    check_plot(path)
    try:
        if path.suffix == ".png":
            from tailrace.figures.png import draw_png  # noqa: PLC0415 - matplotlib is an extra

            draw_png(path, title, charts)
        else:
            from tailrace.figures.svg import page  # noqa: PLC0415

            path.write_text(page(title, charts, notes), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--plot {path}: {error.strerror or error}", param="--plot") from error
