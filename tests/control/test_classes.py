"""What kind of request it is: configured rules, then the caller's word, then its size."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.control.classes import Band, Kind, RequestClass, Rules, Subject, band, classify
from tailrace.policy import ClassRule
from tailrace.types import Traits

INTERACTIVE, LONG = RequestClass.INTERACTIVE, RequestClass.LONG
AGENT, BACKGROUND = RequestClass.AGENT, RequestClass.BACKGROUND


def subject(uncached: int = 10, output: float = 50.0, **traits: Any) -> Subject:
    return Subject(Traits(**traits), uncached, output, tenant="acme", key="ci", model="m")


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (subject(), Kind(INTERACTIVE, "short")),
        (subject(1023), Kind(INTERACTIVE, "short")),
        (subject(1024), Kind(LONG, "prompt_tokens")),
        (subject(output=1024.0), Kind(LONG, "expected_output")),
        (subject(5000, tools=True), Kind(AGENT, "tools")),
        (subject(service_tier="flex", tools=True), Kind(BACKGROUND, "service_tier")),
        (subject(service_tier="auto"), Kind(INTERACTIVE, "short")),
        (subject(origin="job", service_tier="priority"), Kind(BACKGROUND, "origin_job")),
    ],
)
def test_without_rules(asked: Subject, expected: Kind) -> None:
    assert classify(asked, Rules()) == expected


@pytest.mark.parametrize(
    ("rule", "matches"),
    [
        (ClassRule(BACKGROUND), True),
        (ClassRule(BACKGROUND, tenant="acme", key="ci", model="m", route="chat"), True),
        (ClassRule(BACKGROUND, tenant="other"), False),
        (ClassRule(BACKGROUND, route="completions"), False),
        (ClassRule(BACKGROUND, from_tokens=10), True),
        (ClassRule(BACKGROUND, from_tokens=11), False),
        (ClassRule(BACKGROUND, tools=False), True),
        (ClassRule(BACKGROUND, tools=True), False),
        (ClassRule(BACKGROUND, attachments=True), False),
        (ClassRule(BACKGROUND, origin="http", service_tier="default"), False),
    ],
)
def test_a_rule_matches_when_all_it_states_holds(rule: ClassRule, matches: bool) -> None:
    expected = Kind(BACKGROUND, "rule_1") if matches else Kind(INTERACTIVE, "short")
    assert classify(subject(route="chat"), Rules(configured=[rule])) == expected


def test_the_first_rule_that_matches_decides() -> None:
    rules = Rules(configured=[ClassRule(AGENT, tenant="x"), ClassRule(LONG, key="ci"), ClassRule(BACKGROUND)])
    assert classify(subject(), rules) == Kind(LONG, "rule_2")


@pytest.mark.parametrize(
    ("kind", "traits", "ceiling", "expected"),
    [
        (INTERACTIVE, Traits(), Band.HIGH, Band.NORMAL),
        (LONG, Traits(), Band.HIGH, Band.NORMAL),
        (INTERACTIVE, Traits(priority=-1), Band.HIGH, Band.HIGH),
        (INTERACTIVE, Traits(service_tier="priority"), Band.HIGH, Band.HIGH),
        (INTERACTIVE, Traits(service_tier="priority"), Band.NORMAL, Band.NORMAL),
        (INTERACTIVE, Traits(priority=3), Band.HIGH, Band.BACKGROUND),
        (BACKGROUND, Traits(priority=-1), Band.HIGH, Band.BACKGROUND),
        (AGENT, Traits(), Band.BACKGROUND, Band.BACKGROUND),
    ],
)
def test_bands(kind: RequestClass, traits: Traits, ceiling: Band, expected: Band) -> None:
    assert band(kind, traits, ceiling) is expected
