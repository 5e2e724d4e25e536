"""Who pays for a step: its cost is divided among its rows, and what nobody asked for is the system's.

A row's part of a step is its part of the rows' marginal terms (docs/decisions/001 has the step-time formula), so that
the step's own constant is shared in proportion. By the same parts two ledgers are kept. *Standard* device-seconds come
from frozen coefficients and know no noisy neighbour: fairness, limits and prices count them. *Measured* time divides
what the step took, in whole nanoseconds: requests plus overhead are exactly the engine's busy time.

Tokens computed again after a preemption, rejected drafts and failed steps are overhead. Owns no policy.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

from tailrace.engine.step import Row, StepPlan, Work
from tailrace.types import StepCosts

_MEMORY = 0.99  # of what the markups average over, each step
_TYPICAL_CHUNK, _TYPICAL_ROWS = 256, 4


class Bill(NamedTuple):
    """What a step's rows owe for, as their sequences stood before it. `terms`: the rows' marginal seconds; `again`: by
    place, tokens that were computed before."""

    work: Work
    rows: Seq[Row]
    terms: list[float]
    again: dict[int, int]


class Charges:
    def __init__(self, costs: StepCosts) -> None:
        self.costs = costs
        self.busy = 0  # nanoseconds in steps, failed ones too
        self.overhead = 0  # nanoseconds that no request pays
        self.standard_seconds = 0.0  # of all rows
        prefill, decode = costs.prefill * _TYPICAL_CHUNK, costs.decode * _TYPICAL_ROWS
        self._prefill = [costs.step + prefill, prefill]  # standard seconds of prefill, and their marginal part: decayed
        self._decode = [costs.step + decode, decode]

    @property
    def prefill_markup(self) -> float:
        """What prefill is charged over its marginal terms: its part of the steps' constant."""
        return _ratio(self._prefill)

    @property
    def decode_markup(self) -> float:
        return _ratio(self._decode)

    def bill(self, plan: StepPlan) -> Bill:
        """Before the step is committed: its rows' parts."""
        rows = plan.rows
        again = {place: min(row[0].peak - row[1], row[2]) for place, row in enumerate(rows) if row[1] < row[0].peak}
        return Bill(plan.work, rows, self._terms(rows), again)

    def charge(self, bill: Bill, kept: Seq[Row], seconds: float) -> None:
        """Divide a step that took `seconds`. `kept` are its rows without the drafts that were rejected."""
        work, terms = bill.work, bill.terms
        total = sum(terms) or 1.0
        nanoseconds = round(seconds * 1e9)
        step, prefill, decode, kv, attention = self.costs
        first = prefill * work.prefill + attention * work.attention
        standard = step + first + decode * work.decode + kv * work.kv_tokens
        paid = self._divide(kept, bill, (standard / total, nanoseconds / total))
        self.busy += nanoseconds
        self.overhead += nanoseconds - paid
        self.standard_seconds += standard
        _follow(self._prefill, first * standard / total, first)
        _follow(self._decode, (total - first) * standard / total, total - first)

    def failed(self, seconds: float) -> None:
        """A step that came to nothing."""
        nanoseconds = round(seconds * 1e9)
        self.busy += nanoseconds
        self.overhead += nanoseconds

    def _terms(self, rows: Seq[Row]) -> list[float]:
        """The rows' marginal seconds; their tokens where those cost nothing."""
        _, prefill, decode, kv, attention = self.costs
        terms = []
        for row in rows:
            first, size = row[1], row[2]
            if first + 1 == row[0].known:
                terms.append(size * decode + kv * (first + 1) * (size + 1) / 2)
            else:
                terms.append(size * (prefill + attention * (first + size / 2)))
        return terms if any(terms) else [float(row.size) for row in rows]

    def _divide(self, kept: Seq[Row], bill: Bill, scales: tuple[float, float]) -> int:
        """Returns the nanoseconds that requests pay."""
        standard, measured = scales
        paid = 0
        for place, (keep, row, term) in enumerate(zip(kept, bill.rows, bill.terms, strict=True)):
            size = row[2]
            lost = size - keep[2] + bill.again.get(place, 0)
            if lost:
                term *= 1.0 - min(lost, size) / size  # noqa: PLW2901
            whole = int(term * measured)
            paid += whole
            group = row[0].group
            group.standard_seconds += term * standard
            group.measured_nanoseconds += whole
        return paid


def _follow(sums: list[float], standard: float, marginal: float) -> None:
    if marginal > 0.0:
        sums[0] = sums[0] * _MEMORY + standard
        sums[1] = sums[1] * _MEMORY + marginal


def _ratio(sums: list[float]) -> float:
    return sums[0] / sums[1] if sums[1] > 0.0 else 1.0
