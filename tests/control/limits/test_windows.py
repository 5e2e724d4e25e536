"""Days and months of UTC."""

from __future__ import annotations

from calendar import timegm
from datetime import UTC, datetime

import pytest

from tailrace.control.limits.windows import Window


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("now", "day", "month"),
    [
        ("2024-02-28 23:59:59.999999", ("2024-02-28", "2024-02-29"), ("2024-02-01", "2024-03-01")),
        ("2024-02-29 00:00", ("2024-02-29", "2024-03-01"), ("2024-02-01", "2024-03-01")),
        ("2023-02-28 12:00", ("2023-02-28", "2023-03-01"), ("2023-02-01", "2023-03-01")),
        ("2026-12-31 23:59", ("2026-12-31", "2027-01-01"), ("2026-12-01", "2027-01-01")),
        ("2027-01-01 00:00", ("2027-01-01", "2027-01-02"), ("2027-01-01", "2027-02-01")),
        ("2100-02-28 00:00", ("2100-02-28", "2100-03-01"), ("2100-02-01", "2100-03-01")),
    ],
)
def test_where_a_window_begins_and_ends(now: str, day: tuple[str, str], month: tuple[str, str]) -> None:
    for window, (begin, end) in ((Window.DAY, day), (Window.MONTH, month)):
        assert (window.begin(at(now)), window.end(at(now))) == (at(begin), at(end))


def test_windows_follow_each_other_without_a_gap() -> None:
    moment = float(timegm((1970, 1, 1, 0, 0, 0)))
    for _ in range(12 * 200):
        assert Window.MONTH.begin(moment) == moment
        moment = Window.MONTH.end(moment)
    assert moment == at("2170-01-01")
