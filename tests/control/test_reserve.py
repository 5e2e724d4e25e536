"""The last quarter of slots and memory."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tailrace.control.reserve import NOBODY, Reserve


@dataclass(frozen=True, slots=True)
class Running:
    tenant: str
    open_choices: int = 1
    prompt_tokens: int = 0
    generated: int = 0


@dataclass(frozen=True, slots=True)
class Waiting:
    """Of those that wait, `passing` may start before the others."""

    names: str = ""
    passing: str = ""

    @property
    def tenants(self) -> int:
        return len(self.names)

    def waits(self, tenant: str) -> bool:
        return tenant in self.names

    def passes(self, tenants: frozenset[str]) -> bool:
        return any(name not in tenants for name in self.passing)


def seen(*tenants: str, slots: int = 8, kv_tokens: int = 0) -> Reserve:
    reserve = Reserve(slots, kv_tokens)
    for tenant in tenants:
        reserve.came(tenant, 1.0, 0.0)
    return reserve


def test_who_holds_its_part_starts_nothing_in_the_last_quarter() -> None:
    reserve, a_waits = seen("a", "b"), Waiting("a")
    assert reserve.held([Running("a")] * 5, a_waits) == NOBODY
    assert reserve.held([Running("a")] * 6, a_waits) == {"a"}
    assert reserve.held([Running("a", open_choices=6)], a_waits) == {"a"}
    assert reserve.held([Running("a")] * 4 + [Running("b")] * 3, a_waits) == {"a"}


def test_where_nobody_has_a_claim_the_order_decides() -> None:
    reserve = seen("a", "b")
    assert reserve.held([Running("a")] * 6, Waiting("ab")) == NOBODY
    assert reserve.held([Running("a")] * 4 + [Running("b")] * 4, Waiting("a")) == NOBODY
    assert seen("a", "b", "c").held([Running("a")] * 4 + [Running("b")] * 4, Waiting("a")) == {"a", "b"}


def test_who_waits_and_may_go_first_has_a_claim_too() -> None:
    reserve = seen("a", "b")
    assert reserve.held([Running("a")] * 6, Waiting("ab", passing="b")) == {"a"}
    assert reserve.held([Running("a")] * 5, Waiting("ab", passing="b")) == NOBODY
    assert reserve.held([Running("a")] * 6, Waiting("ab", passing="a")) == NOBODY


def test_alone_a_tenant_has_everything() -> None:
    assert seen("a").held([Running("a")] * 8, Waiting()) == NOBODY
    reserve = seen("a", "b")
    reserve.came("a", 1.0, 301.0)  # and b has not been here for five minutes
    assert reserve.held([Running("a")] * 8, Waiting()) == NOBODY


def test_parts_are_by_weight() -> None:
    reserve = seen("a", "c")
    reserve.came("b", 6.0, 0.0)
    running = [Running("a")] * 1 + [Running("b")] * 5
    assert reserve.held(running, Waiting()) == {"a"}
    reserve.came("b", 2.0, 1.0)
    assert reserve.held(running, Waiting()) == {"b"}


def test_memory_has_a_last_quarter_too() -> None:
    reserve = seen("a", "b", kv_tokens=1000)
    assert reserve.held([Running("a", prompt_tokens=700)], Waiting()) == NOBODY
    assert reserve.held([Running("a", prompt_tokens=700, generated=50)], Waiting()) == {"a"}


@given(
    st.lists(st.sampled_from("abcd"), max_size=8),
    st.sets(st.sampled_from("abcd")),
    st.sets(st.sampled_from("abcd")),
)
def test_only_who_has_its_part_is_held_and_only_for_somebody(
    names: list[str], waiting: set[str], passing: set[str]
) -> None:
    full = {name for name in "abcd" if names.count(name) >= 2}
    claims = (set("abcd") - waiting | waiting & passing) - full
    held = seen(*"abcd").held(map(Running, names), Waiting("".join(waiting), "".join(waiting & passing)))
    assert held == (full if len(names) >= 6 and claims else NOBODY)
