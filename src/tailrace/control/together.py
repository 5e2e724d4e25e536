"""The reports of several backends as one, for who looks at the whole server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from tailrace.types import LoadReport

_LARGEST = frozenset(("step_seconds", "step_error", "prefill_markup", "decode_markup"))


def together(reports: Sequence[LoadReport]) -> LoadReport:
    """Counts are added; of what is typical of a step the largest stands."""
    if len(reports) == 1:
        return reports[0]
    return (
        LoadReport(**{each.name: _joined(each.name, reports) for each in fields(LoadReport)})
        if reports
        else LoadReport()
    )


def _joined(name: str, reports: Sequence[LoadReport]) -> Any:
    values = [value for report in reports if (value := getattr(report, name)) is not None]
    if not values:
        return None
    return max(values) if name in _LARGEST else sum(values)
