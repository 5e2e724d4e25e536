"""Predicted times against the real scheduler, played with the same cost model."""

from __future__ import annotations

from random import Random

import pytest

from tailrace.control.forecast import start
from tailrace.control.work_ahead import Ahead
from tailrace.types import Outlook
from tests.control.played import COSTS, Played


def test_a_start_waits_for_answers_to_end() -> None:
    seen = Outlook(0.0, (), 4, 0, COSTS, 200, 400)
    step = 8e-3 + 4 * 2e-3
    nobody = start(seen, Ahead(), 0, [100, 40, 70, 90], 2e-3)
    assert nobody.seconds == pytest.approx(40 * step)
    two = start(seen, Ahead(seconds=2 * 0.2, prefill=0.0, requests=2), 0, [100, 40, 70, 90], 2e-3)
    assert two.seconds == pytest.approx(90 * step)
    assert start(seen, Ahead(), 1, [100, 40, 70], 2e-3).seconds == 0.0


def test_prompts_that_start_before_slow_everyone_down() -> None:
    seen = Outlook(0.0, (), 4, 0, COSTS, 200, 400)
    step, chunk = 8e-3 + 4 * 2e-3, 200 * 1.2e-3
    late = start(seen, Ahead(seconds=1.0, prefill=0.6, requests=1), 0, [100, 40, 70, 90], 2e-3)
    assert late.seconds == pytest.approx(70 * step + min(0.6, 30 * chunk))
    assert late.prefill_left == pytest.approx(max(0.6 - 30 * chunk, 0.0))


def start_error(random: Random) -> float:
    """Predicted less played seconds, in parts of the played ones (of half a second at least), for the last of equal
    requests on four slots."""
    count, tokens, most = random.randint(5, 40), random.randint(20, 400), random.randint(20, 60)
    played = Played(slots=4)
    for number in range(count):
        played.submit(f"o{number}", tokens, most)
    for _ in range(random.randint(0, 30)):
        played.step()
    running = played.scheduler.running
    remaining = [float(most - sequence.generated) for sequence in running]
    waiting = played.scheduler.waiting_count
    prefill = tokens * COSTS.prefill + COSTS.attention * tokens * tokens / 2
    decode = (most - 1) * (COSTS.decode + COSTS.kv * tokens)
    ahead = Ahead((prefill + decode) * waiting, prefill * waiting, waiting)
    free = played.scheduler.free_slots
    predicted = start(played.outlook(), ahead, free, remaining, COSTS.decode + COSTS.kv * tokens)
    begun = played.now
    played.submit("mine", tokens, 5)
    played.until_first("mine")
    actual = played.begun["mine"] - begun
    return (predicted.seconds - actual) / max(actual, 0.5)


def test_a_start_comes_when_it_was_said() -> None:
    errors = sorted(abs(start_error(Random(seed))) for seed in range(40))
    assert errors[20] < 0.03
    assert errors[36] < 0.15
    assert errors[-1] < 0.3
