"""Values made by `frozen` behave as frozen dataclasses do."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, replace

import pytest

from tailrace.frozen import frozen


@frozen
class Quick:
    name: str
    size: int = 3
    parts: list[int] = field(default_factory=list)

    @property
    def twice(self) -> int:
        return 2 * self.size


@dataclass(frozen=True, slots=True)
class Usual:
    name: str
    size: int = 3
    parts: list[int] = field(default_factory=list)


@frozen
class Point:
    x: int
    y: int = 0


def test_it_is_made_from_arguments_in_any_form() -> None:
    for made in (Quick("a", 4, [1]), Quick(name="a", size=4, parts=[1]), Quick("a", parts=[1], size=4)):
        assert (made.name, made.size, made.parts, made.twice) == ("a", 4, [1], 8)
    assert str(Quick("a")) == str(Usual("a")).replace("Usual", "Quick")
    for wrong in (Quick, Usual):
        with pytest.raises(TypeError, match="size"):
            wrong("a", size=1, **{"sizes": 2})
        with pytest.raises(TypeError, match="name"):
            wrong()  # type: ignore[call-arg]


def test_what_a_factory_makes_is_its_own() -> None:
    first, second = Quick("a"), Quick("b")
    first.parts.append(1)
    assert (first.parts, second.parts) == ([1], [])


def test_it_never_changes_and_has_no_other_fields() -> None:
    made = Quick("a")
    with pytest.raises(FrozenInstanceError):
        made.size = 4  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del made.size
    with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
        made.other = 4  # type: ignore[attr-defined]
    assert made.size == 3
    assert type(made) is Quick


def test_equal_values_are_one_key() -> None:
    assert {Point(1, 2): "a"}[Point(1, y=2)] == "a"
    assert Point(1, 2) != Point(2, 1)
    assert Point(1) != (1, 0)


def test_copies_are_equal() -> None:
    made = Point(1, 2)
    assert replace(made, y=5) == Point(1, 5)
    assert copy.copy(made) == copy.deepcopy(made) == pickle.loads(pickle.dumps(made)) == made
