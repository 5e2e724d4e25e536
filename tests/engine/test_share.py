"""Dividing one step's prefill budget."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.engine.share import LEAST, Served, Want, divide, unweighed, weighed

plain = st.tuples(st.integers(1, 5000), st.integers(0, 3), st.sampled_from([0.5, 1.0, 4.0]))
wants = st.lists(plain.map(lambda fields: Want(*fields)), max_size=40)
any_wants = st.lists(
    st.builds(
        Want, st.integers(1, 5000), st.integers(0, 3), st.sampled_from([0.5, 1.0, 4.0]), st.floats(0, 9),
        st.sampled_from([0.25, 0.5, 1.0]), st.booleans(), st.floats(0, 9),
    ),
    max_size=30,
)  # fmt: skip


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
    assert grants == [512, 64 + 256, 64, 64, 64]
    grants = divide(1024, [Want(9000, 1, 1.0), Want(9001, 2, 3.0)])
    assert grants == [256, 768]


def test_what_a_group_does_not_want_goes_to_the_others() -> None:
    assert divide(1000, [Want(9000, 1), Want(9000, 2), Want(100, 3)]) == [450, 450, 100]


def test_the_group_served_least_moves_when_not_all_can() -> None:
    wants = [Want(900, group, served=float(9 - group)) for group in range(10)]
    assert [grant > 0 for grant in divide(64, wants)] == [False] * 8 + [True] * 2


def test_no_prompt_takes_more_than_its_share_of_a_step() -> None:
    assert divide(400, [Want(9000, most=0.25)]) == [100]
    assert divide(100, [Want(9000, most=0.25)]) == [64]  # not so small that the step costs more than its work
    assert sum(divide(400, [Want(9000, most=0.25)] * 4)) == 100


def test_beside_others_prompts_with_a_cap_get_a_rows_worth() -> None:
    assert divide(400, [Want(9000, 1, most=0.25), Want(9000, 2)]) == [32, 368]
    assert divide(400, [Want(9000, most=0.25), Want(50)]) == [32, 50]
    assert divide(400, [Want(9000, most=0.25), Want(50, background=True)]) == [100, 50]


def test_background_gets_what_the_others_leave() -> None:
    assert divide(400, [Want(9000, background=True), Want(300)]) == [100, 300]
    assert divide(400, [Want(9000, background=True), Want(500)]) == [0, 400]


def test_inside_a_group_the_earliest_deadline_then_the_shortest() -> None:
    grants = divide(512, [Want(900, deadline=9.0), Want(900, deadline=3.0), Want(800, deadline=9.0)])
    assert grants == [85, 85 + 257, 85]


@given(st.integers(1, 3000), any_wants)
def test_grants_are_within_all_bounds(budget: int, wants: list[Want]) -> None:
    grants = divide(budget, wants)
    assert all(0 <= grant <= want.tokens for grant, want in zip(grants, wants, strict=True))
    assert sum(grants) <= budget
    capped = [place for place, want in enumerate(wants) if want.most < 1.0]
    most = max((wants[place].most for place in capped), default=1.0)
    assert sum(grants[place] for place in capped) <= max(64, budget * most)
    if sum(grants) < budget:
        assert all(grant == want.tokens for grant, want in zip(grants, wants, strict=True) if want.most == 1.0)


def test_a_group_that_comes_has_no_credit_and_one_that_left_no_debt() -> None:
    served = Served()
    served.of([1, 2])
    served.add(1, 100, 1.0)
    served.add(2, 100, 2.0)
    assert served.of([1, 2, 3]) == {1: 100.0, 2: 50.0, 3: 50.0}
    assert served.of([1]) == {1: 100.0}
    assert served.of([1, 2]) == {1: 100.0, 2: 100.0}


def test_shares_that_are_not_worth_a_row_are_not_made() -> None:
    grants = divide(128, [Want(1000)] * 20)
    assert sum(grant > 0 for grant in grants) == 2
    assert grants[0] > 0


@given(st.integers(1, 5000), st.integers(0, 100_000), st.floats(0, 2e-3))
def test_tokens_deep_in_a_prompt_weigh_more(tokens: int, context: int, attention: float) -> None:
    weight = weighed(tokens, context, attention)
    assert weight >= tokens
    back = unweighed(weight, context, attention)
    assert back >= min(tokens, LEAST)
    assert back in (tokens, tokens - 1) or back <= LEAST


@given(st.integers(LEAST, 5000), st.integers(0, 100_000), st.floats(1e-5, 2e-3))
def test_what_comes_of_a_grant_is_within_it_or_worth_a_row(grant: int, context: int, attention: float) -> None:
    tokens = unweighed(grant, context, attention)
    assert tokens == LEAST or weighed(tokens, context, attention) <= grant


def test_without_attention_nothing_is_weighed() -> None:
    assert weighed(100, 5000, 0.0) == unweighed(100, 5000, 0.0) == 100
