"""How many may wait: a burst finds room, and nobody can crowd another out."""

from __future__ import annotations

import pytest

from tailrace.config import ControlConfig
from tailrace.control.admission import UNBOUNDED, Standing, There, at_the_door
from tailrace.control.bounds import Bounds
from tailrace.control.tenants import Tenants
from tailrace.control.waiting import ALL, Waiting, class_scope, tenant_scope
from tailrace.policy import ClassPolicies, ClassPolicy, Policy, RequestClass, TenantPolicy

CONFIG = ControlConfig(max_waiting_requests=100, max_waiting_tokens=1000)


class Yard:
    def __init__(self, *tenants: TenantPolicy, **policy: object) -> None:
        self.waiting = Waiting()
        self.bounds = Bounds(CONFIG, Tenants(Policy(tenants, **policy)), self.waiting)  # type: ignore[arg-type]

    def wait(self, tenant: str, requests: int, tokens: int = 0) -> None:
        self.waiting.add((ALL, tenant_scope(tenant)), requests, tokens)

    def lets_in(self, tenant: str) -> bool:
        there = There(self.bounds.door(tenant), room=0)
        return at_the_door(1, 0, there).reason == "place_free"


def test_one_tenant_may_fill_everything() -> None:
    yard = Yard()
    yard.wait("default", 99)
    assert yard.lets_in("default")
    yard.wait("default", 1)
    assert not yard.lets_in("default")
    assert yard.bounds.door("default")[0] == Standing(ALL, 100, 0, 100, 1000)


def test_a_greedy_tenant_leaves_each_other_its_part() -> None:
    yard = Yard(TenantPolicy("a", weight=3.0), TenantPolicy("b"), TenantPolicy("default"))
    yard.wait("b", 50)
    assert not yard.lets_in("b")  # half of all, though its part is a fifth
    yard.wait("default", 50)
    assert yard.lets_in("a")  # all is full, but three fifths are its own
    yard.wait("a", 59)
    assert yard.lets_in("a")
    yard.wait("a", 1)
    assert not yard.lets_in("a")


def test_a_burst_may_take_more_than_its_part_while_places_are_free() -> None:
    yard = Yard(*(TenantPolicy(f"t{i}") for i in range(19)))  # and default: a twentieth each
    yard.wait("t0", 49)
    assert yard.lets_in("t0")
    yard.wait("t1", 50)
    yard.wait("t2", 1)
    assert not yard.lets_in("t1")
    assert not yard.lets_in("t0")  # all full, and its own part used
    assert yard.lets_in("t2")


def test_bounds_of_its_own_and_its_own_place_does_not_count() -> None:
    yard = Yard(TenantPolicy("a", max_waiting_requests=2, max_waiting_tokens=70))
    yard.wait("a", 2, 50)
    assert yard.bounds.door("a")[1] == Standing("tenant a", 2, 50, 2, 70)
    assert yard.bounds.door("a", 1, 20)[1] == Standing("tenant a", 1, 30, 2, 70)


@pytest.mark.parametrize(
    ("request_class", "most"),
    [
        (RequestClass.INTERACTIVE, (UNBOUNDED, UNBOUNDED)),
        (RequestClass.LONG, (75, 750)),
        (RequestClass.BACKGROUND, (7, 500)),
    ],
)
def test_classes(request_class: RequestClass, most: tuple[int, int]) -> None:
    yard = Yard(classes=ClassPolicies(background=ClassPolicy(max_waiting_requests=7)))
    yard.waiting.add((class_scope(request_class),), 2, 9)
    assert yard.bounds.of_class(request_class) == Standing(f"class {request_class}", 2, 9, *most, at_door=False)
