"""Who pays for a step: parts by marginal work, and books that balance to the nanosecond."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.clock import ManualClock
from tailrace.engine.charges import Charges
from tailrace.engine.fake_runner import FakeRunner
from tailrace.engine.sequence import Group
from tailrace.engine.step import Row, StepPlan, Work
from tailrace.types import StepCosts
from tests.engine.support import VOCAB, Oracle, Rig, parts, prompt, request

COSTS = StepCosts(step=4.0, prefill=1.0, decode=2.0, kv=0.5, attention=0.25)


def group(prompt_tokens: int, generated: int = 0) -> Group:
    """With the prompt and that many tokens known, all but the last computed."""
    made = Group(request("g", prompt(prompt_tokens), 50), 0, 0)
    sequence = made.sequences[0]
    for _ in range(generated):
        sequence.append(5)
    sequence.computed = sequence.peak = sequence.known - 1
    return made


def plan(*rows: Row, **work: int) -> StepPlan:
    return StepPlan(rows, (), (), Work(**work))


def test_a_row_pays_its_own_work_and_the_same_part_of_the_constant() -> None:
    charges = Charges(COSTS)
    talking, reading = group(3, 2), group(9)
    reading.sequences[0].computed = reading.sequences[0].peak = 0
    rows = (Row(talking.sequences[0], 4, 1), Row(reading.sequences[0], 0, 4))
    charges.charge(charges.bill(plan(*rows, prefill=4, decode=1, kv_tokens=5, attention=8)), rows, 13.0)
    decode, prefill = 2.0 + 5 * 0.5, 4 * 1.0 + 8 * 0.25
    standard = 4.0 + decode + prefill
    assert talking.standard_seconds == pytest.approx(standard * decode / (decode + prefill))
    assert reading.standard_seconds == pytest.approx(standard * prefill / (decode + prefill))
    assert talking.measured_nanoseconds == pytest.approx(13e9 * decode / (decode + prefill), abs=1)
    assert charges.busy == 13_000_000_000
    assert charges.overhead == charges.busy - talking.measured_nanoseconds - reading.measured_nanoseconds <= 1


def test_what_is_computed_again_is_the_systems() -> None:
    charges = Charges(COSTS._replace(attention=0.0))
    one = group(20)
    sequence = one.sequences[0]
    sequence.computed, sequence.peak = 0, 6
    row = Row(sequence, 0, 8)
    charges.charge(charges.bill(plan(row, prefill=8)), (row,), 12.0)
    assert one.standard_seconds == pytest.approx(3.0)  # two of eight tokens, with their part of the constant
    assert one.measured_nanoseconds == 3_000_000_000
    assert charges.overhead == 9_000_000_000


def test_rejected_drafts_are_the_systems() -> None:
    charges = Charges(COSTS)
    one = group(3, 2)
    sequence = one.sequences[0]
    charges.charge(charges.bill(plan(Row(sequence, 4, 4), decode=4, kv_tokens=11)), (Row(sequence, 4, 2),), 8.0)
    assert one.measured_nanoseconds == 4_000_000_000
    assert charges.overhead == 4_000_000_000


def test_failed_steps_are_the_systems() -> None:
    charges = Charges(COSTS)
    charges.failed(2.5)
    assert charges.busy == charges.overhead == 2_500_000_000


def test_free_work_is_shared_by_tokens() -> None:
    charges = Charges(StepCosts(1.0, 0.0, 0.0, 0.0, 0.0))
    one, two = group(9), group(9)
    for each in (one, two):
        each.sequences[0].computed = each.sequences[0].peak = 0
    rows = (Row(one.sequences[0], 0, 6), Row(two.sequences[0], 0, 2))
    charges.charge(charges.bill(plan(*rows, prefill=8)), rows, 2.0)
    assert (one.standard_seconds, two.standard_seconds) == (0.75, 0.25)


def test_the_markup_is_the_part_of_the_constant() -> None:
    charges = Charges(COSTS)
    one = group(9)
    row = Row(one.sequences[0], 8, 1)
    for _ in range(2000):
        charges.charge(charges.bill(plan(row, decode=1, kv_tokens=9)), (row,), 1.0)
    assert charges.decode_markup == pytest.approx((4.0 + 6.5) / 6.5)
    assert charges.prefill_markup == pytest.approx((4.0 + 256) / 256)


class Sluggish(FakeRunner):
    """A step takes an odd while."""

    def __init__(self, clock: ManualClock, blocks: int) -> None:
        super().__init__(blocks, vocab=VOCAB)
        self.clock = clock

    def forward(self, plan: StepPlan) -> None:
        super().forward(plan)
        self.clock.advance(0.0123456789 * (1 + len(plan.rows)))


@settings(max_examples=15, deadline=None)
@given(
    st.integers(5, 14),
    st.lists(st.tuples(st.integers(1, 250), st.integers(1, 60)), min_size=1, max_size=8),
    st.sampled_from([None, 0, 70, 100]),
)
def test_requests_and_overhead_are_the_engines_busy_time(
    blocks: int, sizes: list[tuple[int, int]], right: int | None
) -> None:
    """`right`: of a hundred guesses of a drafter."""
    drafter = None if right is None else Oracle(right=right)
    rig = Rig(parts(blocks=blocks, slots=6, context=320, drafter=drafter))
    rig.loop._runner = Sluggish(rig.clock, blocks)
    groups = rig.submit(*(request(f"r{i}", prompt(p, i), most) for i, (p, most) in enumerate(sizes)))
    rig.run()
    charges = rig.loop.charges
    assert sum(group.measured_nanoseconds for group in groups) + charges.overhead == charges.busy > 0
    paid = sum(group.standard_seconds for group in groups)
    assert paid <= charges.standard_seconds * (1 + 1e-9)
    if not any(group.preemptions for group in groups) and right in (None, 100):
        assert paid == pytest.approx(charges.standard_seconds)
        assert charges.overhead <= 6 * rig.loop.stats.steps
    last = rig.choice("r0").ends[0].facts
    assert last is not None and last.measured_seconds == groups[0].measured_nanoseconds / 1e9
