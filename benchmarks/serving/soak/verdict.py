"""What was seen over time, and what that says: memory after the warm-up, and what stayed behind."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tailrace.figures.chart import MOST_POINTS, Chart, Points, draw

WARM_UP = 1 / 3  # of the time: caches, pools and the latest records fill in it
WINDOW = 0.1  # of the time, at both ends of what is compared
GROWTH = 0.03  # of resident memory, at the most
SPARE = {"sequences": 32}  # that may be there more: each of the engine's slots remembers who had it last
FINE = ("200", "400", "404", "429", "503", "left")  # ends that are no failure of the server's


@dataclass(slots=True)
class Look:
    """At one moment, in seconds from the beginning."""

    at: float
    resident: float  # MiB
    handles: int
    running: float
    waiting: float
    kv_used: float  # tokens


@dataclass(slots=True)
class Soak:
    seconds: float
    looks: list[Look] = field(default_factory=list)
    before: dict[str, float] = field(default_factory=dict)  # counts while nothing was to do, after a short warm-up
    after: dict[str, float] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)

    def growth(self) -> float:
        """Of the median memory of the last window over that of the first after the warm-up, as a part of it."""
        warm = WARM_UP * self.seconds
        first = self._resident(warm, warm + WINDOW * self.seconds)
        return self._resident((1 - WINDOW) * self.seconds, self.seconds) / first - 1

    def left(self) -> dict[str, float]:
        """What there is more of than before."""
        more = {name: count - self.before.get(name, 0) for name, count in self.after.items()}
        return {name: count for name, count in more.items() if count > SPARE.get(name, 0)}

    def faults(self) -> list[str]:
        found = [f"{name}: {count:g} left" for name, count in self.left().items()]
        if self.growth() > GROWTH:
            found.append(f"memory grew by {self.growth():.1%}")
        found += [f"{count} answers of {end}" for end, count in self.ends.items() if end not in FINE]
        return found

    def _resident(self, begin: float, end: float) -> float:
        return statistics.median([look.resident for look in self.looks if begin <= look.at <= end] or [0.0])


def plot(soak: Soak, path: Path) -> None:
    """`.html` or `.png`."""
    warm = WARM_UP * soak.seconds / 60

    def line(name: str) -> Points:
        looks = soak.looks[:: max(len(soak.looks) // MOST_POINTS, 1)]
        return [(look.at / 60, getattr(look, name)) for look in looks]

    charts = [
        Chart("Resident memory", "minutes", "MiB", {"resident": line("resident")}, warm),
        Chart("File handles", "minutes", "handles", {"handles": line("handles")}, warm),
        Chart("Requests", "minutes", "requests", {"running": line("running"), "waiting": line("waiting")}, warm),
        Chart("KV memory in use", "minutes", "tokens", {"used": line("kv_used")}, warm),
    ]
    draw(path, f"{soak.seconds / 60:g} minutes of mixed traffic", charts, notes(soak))


def notes(soak: Soak) -> Sequence[str]:
    total = sum(soak.ends.values())
    left = soak.ends.get("left", 0)
    return [
        f"{total} requests, {left / max(total, 1):.0%} of which hung up; the line marks the end of the warm-up",
        f"resident memory after it: {soak.growth():+.2%}",
        f"idle before: {soak.before}",
        f"idle after: {soak.after}",
    ]
