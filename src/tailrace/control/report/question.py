"""What a report is asked for: a span of time, whose requests, and by what they are told apart."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from tailrace.errors import ConfigError
from tailrace.frozen import frozen

DIMENSIONS = ("tenant", "class", "bucket", "model", "day")
DEFAULT_SINCE, DEFAULT_BY = "7d", "tenant,class,bucket"
_UNITS = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}
_LAST = 253_402_300_800.0  # the end of the year 9999


@frozen
class Question:
    """`since` and `until` are seconds since the epoch; `by` are some of DIMENSIONS; `tenant` empty: all."""

    since: float
    until: float
    by: tuple[str, ...]
    tenant: str = ""


def question(since: str, until: str, by: str, tenant: str, now: float) -> Question:
    """Of texts as people write them; empty ones are the defaults. Raises ConfigError that names the word."""
    first = moment(since or DEFAULT_SINCE, "since", now)
    last = moment(until, "until", now) if until else now
    if not first < last:
        raise ConfigError(f"since {since!r} is not before until {until or 'now'!r}", param="since")
    names = tuple(dict.fromkeys(name.strip() for name in (by or DEFAULT_BY).split(",")))
    odd = [name for name in names if name not in DIMENSIONS]
    if odd:
        raise ConfigError(f"by {odd[0]!r}: accepted are {', '.join(DIMENSIONS)}, with commas between them", param="by")
    return Question(first, last, names, tenant)


def moment(text: str, word: str, now: float) -> float:
    """ "7d" is so long ago; else a date, or date and time, of UTC unless it says otherwise."""
    ago = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)\s*([mhdw])", text.strip())
    if ago is not None:
        return max(now - float(ago[1]) * _UNITS[ago[2]], 0.0)
    try:
        found = datetime.fromisoformat(text.strip())
        seconds = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        seconds = -1.0
    if not 0 <= seconds < _LAST:
        raise ConfigError(
            f"{word} {text[:80]!r}: accepted is a time ago such as 90m, 24h or 7d, or a date such as 2027-01-31, also "
            "with a time",
            param=word,
        )
    return seconds
