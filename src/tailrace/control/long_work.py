"""When a long request should have ended: twice its time alone, behind the long ones that were there when it came.

The engine computes long prompts of a tenant in this order, so that short ones among them, which it would otherwise
finish first, make nobody later than that. An aim, no promise: nothing is refused by it. Owns who is here and how long
each would take alone.
"""

from __future__ import annotations

from tailrace.control.estimate import Estimate
from tailrace.types import StepCosts


class LongWork:
    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._alone: dict[str, float] = {}  # seconds, of those that have not ended

    def came(self, request_id: str, expected: Estimate, now: float) -> float:
        """A long request is here from now on. When it should have ended."""
        alone = expected.prefill_seconds + expected.decode_seconds + self._costs.step * expected.output_mean
        due = now + 2.0 * alone + sum(self._alone.values())
        self._alone[request_id] = alone
        return due

    def ended(self, request_id: str) -> None:
        """Also of one that is not here."""
        self._alone.pop(request_id, None)
