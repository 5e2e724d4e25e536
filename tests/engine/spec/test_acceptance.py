"""Rates begin at the prior, follow what happens, and keep sequences apart."""

from __future__ import annotations

import pytest

from tailrace.engine.spec.acceptance import Acceptance


def test_before_anything_the_prior_is_the_rate() -> None:
    acceptance = Acceptance([0.1, 0.6])
    own = acceptance.record()
    assert acceptance.rate(own, 0) == pytest.approx(0.1)
    assert acceptance.rate(own, 1) == pytest.approx(0.6)


def test_a_sequences_own_record_outweighs_everyones() -> None:
    acceptance = Acceptance([0.5, 0.5])
    lucky, unlucky = acceptance.record(), acceptance.record()
    for _ in range(100):
        acceptance.learn(lucky, 1, True)
        acceptance.learn(unlucky, 1, False)
    assert acceptance.rate(lucky, 1) > 0.8
    assert acceptance.rate(unlucky, 1) < 0.2
    assert acceptance.rate(acceptance.record(), 1) == pytest.approx(0.5, abs=0.05)
    assert acceptance.rate(lucky, 0) == pytest.approx(0.5)


def test_new_sequences_begin_with_what_others_showed() -> None:
    acceptance = Acceptance([0.9])
    for _ in range(200):
        acceptance.learn(acceptance.record(), 0, False)
    assert acceptance.rate(acceptance.record(), 0) < 0.1


def test_old_guesses_fade() -> None:
    acceptance = Acceptance([0.5])
    own = acceptance.record()
    for _ in range(500):
        acceptance.learn(own, 0, False)
    before = acceptance.rate(own, 0)
    for _ in range(30):
        acceptance.learn(own, 0, True)
    assert before < 0.05
    assert acceptance.rate(own, 0) > 0.5


def test_what_is_not_tried_any_more_is_forgotten_slowly() -> None:
    acceptance = Acceptance([0.6])
    own = acceptance.record()
    for _ in range(100):
        acceptance.learn(own, 0, False)
    before = acceptance.rate(own, 0)
    for _ in range(3000):
        acceptance.fade(own)
    assert before < 0.1
    assert acceptance.rate(own, 0) > 0.5
