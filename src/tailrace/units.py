"""Numbers as people read them."""

from __future__ import annotations


def human_bytes(count: float) -> str:
    """ "134.5 MiB": binary units, one decimal."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
