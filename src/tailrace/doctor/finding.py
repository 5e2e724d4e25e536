"""One thing that was looked at: how it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from tailrace.frozen import frozen


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"  # works, but slower or with less room than it could
    FAIL = "fail"  # `tailrace serve` would not start


@frozen
class Finding:
    """`text` is for people, `facts` (plain numbers and words) for programs; `advice` says what to change."""

    check: str
    level: Level
    text: str
    advice: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)
