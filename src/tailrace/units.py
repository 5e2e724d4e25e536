"""Numbers as people read them."""

from __future__ import annotations

from bisect import bisect_right

LENGTHS = ((256, "<256"), (1024, "<1k"), (4096, "<4k"), (16_384, "<16k"), (65_536, "<64k"))
LONGEST = ">=64k"
_BOUNDS = tuple(bound for bound, _ in LENGTHS)
LENGTH_BUCKETS = (*(name for _, name in LENGTHS), LONGEST)  # shortest first


def length_bucket(prompt_tokens: int) -> str:
    """The name under which prompts of alike length are counted together, wherever anything is told by length."""
    return LENGTH_BUCKETS[bisect_right(_BOUNDS, prompt_tokens)]


def human_bytes(count: float) -> str:
    """ "134.5 MiB": binary units, one decimal."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
