"""Predictions, and what they learn from having been wrong."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tailrace.backends.fake import FakeBackend
from tailrace.control.fair_queue import FairQueue
from tailrace.control.foresight import Around, Foresight, Times
from tailrace.control.prediction_error import PredictionErrors
from tailrace.types import Outlook, Prefill, StepCosts
from tests.control.tickets import Entry, entry

COSTS = StepCosts(8e-3, 1e-3, 2e-3, 0.0, 0.0)


class Seer:
    """Foresight over a queue and a backend that looks as told."""

    def __init__(self, around: Around, outlook: Outlook | None = None, queue: FairQueue[Entry] | None = None) -> None:
        backend = FakeBackend()
        backend.caps = replace(backend.caps, costs=COSTS)
        seen = outlook or Outlook(costs=COSTS)
        backend.outlook = lambda: seen  # type: ignore[method-assign]
        self.queue = queue or FairQueue()
        self.foresight = Foresight(self.queue, backend, lambda ticket: around)

    def predict(self, **costs: float) -> Times:
        return self.foresight.predict(entry("x", "me", arrival=1e6, **costs).ticket).model


def test_with_room_there_is_no_wait() -> None:
    found = Seer(Around(free=2)).predict(prompt=100)
    assert found.wait == 0.0
    assert found.ttft == pytest.approx(8e-3 + 0.1)
    assert found.tpot == pytest.approx(8e-3 + 2e-3)
    assert found.e2e == pytest.approx(found.ttft + 9 * found.tpot)


def test_prompts_given_to_the_backend_a_moment_ago_count() -> None:
    alone = Seer(Around(free=2)).predict(prompt=100)
    found = Seer(Around(free=2, pending=(Prefill(90),))).predict(prompt=100)
    assert found.ttft == pytest.approx(alone.ttft + 0.09)


def test_without_room_it_waits_for_who_ends_first() -> None:
    seen = Outlook(decodes=2, costs=COSTS)
    found = Seer(Around(free=0, remaining=(50.0, 20.0)), seen).predict(prompt=100)
    assert found.wait == pytest.approx(20 * 0.012)
    assert found.ttft > found.wait + 0.1


def test_what_waits_before_it_is_served_before_it() -> None:
    queue: FairQueue[Entry] = FairQueue()
    for i in range(3):
        queue.push(entry(f"w{i}", "me", arrival=i, prompt=100, prefill=0.1, decode=0.1))
    seen = Outlook(decodes=1, costs=COSTS)
    found = Seer(Around(free=0, remaining=(10.0,)), seen, queue).predict(prompt=100, prefill=0.1, decode=0.1)
    assert found.wait > 3 * 0.2


def test_a_constant_error_of_the_model_is_put_right() -> None:
    seer = Seer(Around(free=2))
    rng = random.Random(1)
    for _ in range(300):
        made = seer.foresight.predict(entry("x", "me", arrival=1e6, prompt=100).ticket)
        seer.foresight.learn(made, Times(0.0, made.model.ttft * 2 * rng.uniform(0.9, 1.1), 0.02, 1.0))
    found = seer.foresight.predict(entry("x", "me", arrival=1e6, prompt=100).ticket)
    assert found.ttft == pytest.approx(2 * found.model.ttft, rel=0.06)
    assert found.chance(1.7 * found.model.ttft) < 0.1
    assert found.chance(2.4 * found.model.ttft) > 0.9
    assert found.chance(found.ttft_within(0.9)) == pytest.approx(0.9, abs=0.1)


def test_kinds_err_apart() -> None:
    errors = PredictionErrors()
    for _ in range(200):
        errors.learn("short", 1.0, 1.0)
        errors.learn("long", 1.0, 4.0)
    assert errors.right("short", 3.0) == pytest.approx(3.0, rel=0.05)
    assert errors.right("long", 3.0) == pytest.approx(12.0, rel=0.05)
    assert 1.0 < errors.right("unseen", 3.0, 0.9) <= 12.6


def test_before_anything_is_seen_the_model_is_believed_with_a_margin() -> None:
    errors = PredictionErrors()
    assert errors.right("any", 2.0) == pytest.approx(2.0, rel=0.05)
    assert 0.4 < errors.chance("any", 2.0, 2.0) < 0.7
    assert errors.chance("any", 2.0, 1.0) < 0.15
    assert errors.chance("any", 2.0, 4.0) > 0.9


def test_differences_of_very_small_numbers_say_nothing() -> None:
    errors = PredictionErrors(least=0.05)
    assert errors.ratio(0.0, 0.04) == 1.0
    assert errors.ratio(0.0, 0.1) == 2.0


def test_what_requests_cost_is_learned_and_shown() -> None:
    seer = Seer(Around(free=2))
    for _ in range(300):
        seer.foresight.learn_cost(entry("x", prefill=1.0, decode=1.0).ticket, 3.0, 20.0, 4)
    shown = {(name, part): value for name, part, value in seer.foresight.quantiles()}
    assert shown["device_seconds", 0.5] == pytest.approx(1.5, rel=0.05)
    assert shown["output_tokens", 0.5] == pytest.approx(2.0, rel=0.05)
    assert shown["kv_blocks", 0.5] == pytest.approx(2.0, rel=0.05)
    assert shown["ttft", 0.5] == pytest.approx(1.0, rel=0.05)
