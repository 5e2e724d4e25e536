"""Dividing one step's prefill budget."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.engine.share import Want, divide

wants = st.lists(
    st.builds(Want, st.integers(1, 5000), st.integers(0, 3), st.sampled_from([0.5, 1.0, 4.0])), max_size=40
)


@given(st.integers(1, 3000), wants)
def test_the_budget_is_kept_and_used(budget: int, wants: list[Want]) -> None:
    grants = divide(budget, wants)
    assert len(grants) == len(wants)
    assert all(0 <= grant <= want.tokens for grant, want in zip(grants, wants, strict=True))
    assert sum(grants) == min(budget, sum(want.tokens for want in wants))


@given(st.integers(64, 3000), wants)
def test_the_oldest_always_moves(budget: int, wants: list[Want]) -> None:
    if wants:
        assert divide(budget, wants)[0] > 0


def test_a_long_prompt_never_takes_everything_while_another_waits() -> None:
    assert divide(512, [Want(8000), Want(8000)]) == [384, 128]
    assert divide(512, [Want(8000), Want(30)]) == [482, 30]


def test_what_the_shares_leave_goes_to_the_shortest() -> None:
    assert divide(512, [Want(8000), Want(400), Want(300)]) == [85, 127, 300]


def test_groups_share_by_weight_not_by_number_of_prompts() -> None:
    grants = divide(1024, [Want(9000, 1, 1.0)] + [Want(9001, 2, 1.0)] * 4)
    assert grants[0] == 256 + 512
    assert grants[1:] == [64] * 4
    grants = divide(1024, [Want(9000, 1, 1.0), Want(9001, 2, 3.0)])
    assert grants == [128 + 512, 384]


def test_shares_that_are_not_worth_a_row_are_not_made() -> None:
    grants = divide(128, [Want(1000)] * 20)
    assert sum(grant > 0 for grant in grants) == 2
    assert grants[0] > 0
