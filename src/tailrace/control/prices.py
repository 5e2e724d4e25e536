"""What a request costs in money, from what it took: exact, in whole millionths of the currency's unit."""

from __future__ import annotations

from tailrace.frozen import frozen
from tailrace.policy import Price

MILLIONTHS = 1_000_000  # of the currency's unit: what all amounts of money are counted in
_PARTS = 10**9  # a price says billionths: counts times prices are billionths of a millionth


@frozen
class Counts:
    """What is charged for: standard device time, and tokens."""

    device_us: int
    uncached: int  # prompt tokens that had to be computed
    cached: int  # prompt tokens that the prefix cache had
    output: int


def cost(price: Price, counts: Counts) -> int:
    """The exact sum of the parts, rounded once: half a millionth is a whole one."""
    parts = (
        counts.device_us * price.device_second
        + counts.uncached * price.prompt_million
        + counts.cached * price.cached_million
        + counts.output * price.output_million
    )
    return (parts + _PARTS // 2) // _PARTS
