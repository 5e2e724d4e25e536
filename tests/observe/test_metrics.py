"""What a scrape shows."""

from __future__ import annotations

import pytest

from tailrace.clock import ManualClock
from tailrace.observe.metrics import Metrics
from tailrace.observe.timeline import Phase, Timeline
from tailrace.types import LoadReport


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"tailrace_{name}", labels)


KIND = {"class": "interactive", "length": "<256"}


def finished(outcome: str = "ok", **facts: object) -> Timeline:
    clock = ManualClock()
    timeline = Timeline(clock)
    clock.advance(0.5)
    timeline.enter(Phase.PREFILL)
    clock.advance(1.0)
    timeline.enter(Phase.DECODE)
    clock.advance(2.0)
    timeline.facts.update({"prompt_tokens": 200, "completion_tokens": 5, "longest": 5, "class": "interactive", **facts})
    timeline.close(outcome)
    return timeline


def test_a_finished_request_is_counted_with_its_times() -> None:
    metrics = Metrics()
    metrics.closed(finished(), "chat")
    assert sample(metrics, "requests_total", route="chat", outcome="ok") == 1
    assert sample(metrics, "phase_seconds_sum", phase="prefill", **KIND) == 1.0
    assert sample(metrics, "phase_seconds_sum", phase="decode", **KIND) == 2.0
    assert sample(metrics, "ttft_seconds_sum", **KIND) == 1.5
    assert sample(metrics, "tpot_seconds_sum", **KIND) == 0.5
    assert sample(metrics, "e2e_seconds_sum", **KIND) == 3.5


@pytest.mark.parametrize(("deadline", "met"), [(1.5, "true"), (1.4, "false")])
def test_deadlines_are_counted_by_whether_they_were_met(deadline: float, met: str) -> None:
    metrics = Metrics()
    metrics.closed(finished(deadline=deadline), "chat")
    assert sample(metrics, "deadlines_total", met=met, **{"class": "interactive"}) == 1


def test_a_refused_request_has_no_times() -> None:
    metrics = Metrics()
    timeline = Timeline(ManualClock())
    timeline.close("rejected")
    metrics.closed(timeline, "chat")
    metrics.rejected("queue_full")
    assert sample(metrics, "requests_total", route="chat", outcome="rejected") == 1
    assert sample(metrics, "rejects_total", reason="queue_full") == 1
    assert sample(metrics, "e2e_seconds_count", **{"class": ""}, length="<256") is None


def test_gauges_show_the_state_at_the_scrape() -> None:
    metrics, running = Metrics(), [3]
    metrics.watch(lambda: running[0], lambda: 7, lambda: LoadReport(running=4, kv_blocks_free=6, kv_blocks_total=10))
    assert sample(metrics, "requests_running") == 3
    running[0] = 0
    assert sample(metrics, "requests_running") == 0
    assert sample(metrics, "requests_waiting") == 7
    assert (sample(metrics, "kv_blocks_used"), sample(metrics, "sequences_running")) == (4, 4)
    assert b"tailrace_requests_running 0.0" in metrics.render()


def test_two_instances_do_not_share_anything() -> None:
    first, second = Metrics(), Metrics()
    first.tokens(5)
    assert sample(first, "generated_tokens_total") == 5
    assert sample(second, "generated_tokens_total") == 0


def test_what_the_engine_counts_and_predicts() -> None:
    metrics = Metrics()
    load = LoadReport(drafted_tokens=8, accepted_tokens=6, step_error=0.25, aborts=2, abort_seconds=0.5)
    metrics.watch(lambda: 0, lambda: 0, lambda: load)
    assert sample(metrics, "drafted_tokens_total") == 8
    assert sample(metrics, "accepted_tokens_total") == 6
    assert sample(metrics, "draft_acceptance_rate") == 0.75
    assert sample(metrics, "step_time_error") == 0.25
    assert (sample(metrics, "cancel_seconds_count"), sample(metrics, "cancel_seconds_sum")) == (2, 0.5)


def test_without_drafts_the_acceptance_rate_is_nothing() -> None:
    metrics = Metrics()
    metrics.watch(lambda: 0, lambda: 0, LoadReport)
    assert sample(metrics, "draft_acceptance_rate") == 0


def test_how_right_predictions_are_is_shown() -> None:
    metrics = Metrics()
    metrics.watch_predictions(lambda: [("ttft", 0.9, 1.25)])
    labels = {"quantity": "ttft", "quantile": "0.9"}
    assert metrics.registry.get_sample_value("tailrace_prediction_ratio", labels) == 1.25
