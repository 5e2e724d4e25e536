"""Which of many names have lines of their own."""

from __future__ import annotations

from tailrace.observe.top import OTHER, Top


def test_those_that_have_most_get_the_places() -> None:
    top = Top(2)
    top.choose({"a": 1.0, "b": 3.0, "c": 2.0})
    assert [top.label(name) for name in "abc"] == [OTHER, "b", "c"]


def test_of_equal_ones_the_order_of_names_decides() -> None:
    top = Top(1)
    top.choose({"b": 1.0, "a": 1.0})
    assert [top.label(name) for name in "ab"] == ["a", OTHER]


def test_places_are_kept() -> None:
    top = Top(2)
    top.choose({"a": 1.0})
    top.choose({"a": 1.0, "b": 2.0, "c": 5.0})
    top.choose({"a": 1.0, "b": 9.0, "c": 5.0})
    assert [top.label(name) for name in "abc"] == ["a", OTHER, "c"]
