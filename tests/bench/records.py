"""Records made by hand."""

from __future__ import annotations

from array import array
from typing import Any

from tailrace.bench.record import Record


def record(scheduled: float = 0.0, first: float = 0.1, end: float = 0.5, tokens: int = 5, **fields: Any) -> Record:
    """Answered, its pieces of text evenly spaced from `first` to `end`."""
    made = Record(
        0, 0, 0, scheduled, scheduled, None, tokens, first=first, end=end, output_tokens=tokens, prompt_tokens=100
    )
    step = (end - first) / max(tokens - 1, 1)
    made.chunks = array("d", [first + step * i for i in range(tokens)])
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def failed(key: str = "500", scheduled: float = 0.0) -> Record:
    return Record(0, 0, 0, scheduled, scheduled, 100, 5, status=500, error=key, message=f"it said {key}")
