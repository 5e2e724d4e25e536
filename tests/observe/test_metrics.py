"""What a scrape shows."""

from __future__ import annotations

import pytest

from tailrace.clock import ManualClock
from tailrace.errors import InternalError, InvalidRequest, QueueFull, RateLimited, TailraceError, Unauthorized
from tailrace.observe.metrics import Metrics
from tailrace.observe.timeline import Phase, Timeline


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"tailrace_{name}", labels)


KIND = {"class": "interactive", "length": "<256", "model": "small", "outcome": "ok"}


def finished(outcome: str = "ok", **facts: object) -> Timeline:
    clock = ManualClock()
    timeline = Timeline(clock)
    clock.advance(0.5)
    timeline.enter(Phase.PREFILL)
    clock.advance(1.0)
    timeline.enter(Phase.DECODE)
    clock.advance(2.0)
    known = {"class": "interactive", "bucket": "<256", "base_model": "small"}
    counts = {"prompt_tokens": 200, "completion_tokens": 5, "longest": 5, "worst_gap": 0.75}
    timeline.facts.update({**known, **counts, **facts})
    timeline.close(outcome)
    return timeline


def test_a_finished_request_is_counted_with_its_times() -> None:
    metrics = Metrics()
    metrics.closed(finished(), "chat", "acme")
    assert sample(metrics, "requests_total", route="chat", outcome="ok") == 1
    assert sample(metrics, "phase_seconds_sum", phase="prefill", **KIND) == 1.0
    assert sample(metrics, "phase_seconds_sum", phase="decode", **KIND) == 2.0
    assert sample(metrics, "ttft_seconds_sum", **KIND) == 1.5
    assert sample(metrics, "tpot_seconds_sum", **KIND) == 0.5
    assert sample(metrics, "worst_gap_seconds_sum", **KIND) == 0.75
    assert sample(metrics, "e2e_seconds_sum", **KIND) == 3.5
    assert sample(metrics, "e2e_seconds_bucket", le="2.5", **KIND) == 0
    assert sample(metrics, "e2e_seconds_bucket", le="5", **KIND) == 1
    assert sample(metrics, "tenant_requests_total", tenant="acme", outcome="ok") == 1
    assert sample(metrics, "tenant_tokens_total", tenant="acme", kind="generated") == 5


@pytest.mark.parametrize(("deadline", "met"), [(1.5, "true"), (1.4, "false")])
def test_deadlines_are_counted_by_whether_they_were_met(deadline: float, met: str) -> None:
    metrics = Metrics()
    metrics.closed(finished(deadline=deadline), "chat")
    assert sample(metrics, "deadlines_total", met=met, **{"class": "interactive"}) == 1


def test_a_refused_request_has_no_first_token() -> None:
    metrics = Metrics()
    timeline = Timeline(ManualClock())
    timeline.failed(QueueFull("full"))
    timeline.close("rejected")
    metrics.closed(timeline, "chat")
    metrics.rejected("queue_full")
    unknown = {"class": "none", "length": "none", "model": "none", "outcome": "rejected"}
    assert sample(metrics, "requests_total", route="chat", outcome="rejected") == 1
    assert sample(metrics, "rejects_total", reason="queue_full") == 1
    assert metrics.rejects == {"queue_full": 1}
    assert sample(metrics, "errors_total", domain="admission", kind="capacity") == 1
    assert sample(metrics, "e2e_seconds_count", **unknown) == 1
    assert sample(metrics, "ttft_seconds_count", **unknown) is None


@pytest.mark.parametrize(
    ("outcome", "error", "met"),
    [
        ("ok", None, "true"),
        ("error", InternalError("broken"), "false"),
        ("rejected", QueueFull("full"), "false"),
        ("rejected", RateLimited("too often"), None),  # the caller's own limit
        ("invalid", InvalidRequest("what?"), None),
        ("cancelled", None, None),
    ],
)
def test_what_the_server_answers_for_is_judged(outcome: str, error: TailraceError | None, met: str | None) -> None:
    metrics, timeline = Metrics(), Timeline(ManualClock())
    timeline.facts.update({"class": "agent", "bucket": "<1k"})
    if error is not None:
        timeline.failed(error)
    timeline.close(outcome)
    metrics.closed(timeline, "chat")
    kind = {"class": "agent", "length": "<1k"}
    found = {wanted: sample(metrics, "slo_requests_total", met=wanted, **kind) for wanted in ("true", "false")}
    assert found == {wanted: 1 if met == wanted else None for wanted in ("true", "false")}


@pytest.mark.parametrize(("seconds", "met"), [(0.5, None), (1.5, 1)])
def test_who_leaves_when_the_first_token_is_overdue_was_not_served_well(seconds: float, met: float | None) -> None:
    metrics, clock = Metrics(), ManualClock()
    timeline = Timeline(clock)
    timeline.facts.update({"class": "agent", "bucket": "<1k", "deadline": 1.0})
    clock.advance(seconds)
    timeline.close("cancelled")
    metrics.closed(timeline, "chat")
    assert sample(metrics, "slo_requests_total", met="false", **{"class": "agent"}, length="<1k") == met


def test_lines_do_not_grow_with_tenants_adapters_and_what_callers_write() -> None:
    metrics = Metrics()
    for number in range(1000):
        asked = f'{number}\n"}}{{=,'
        metrics.closed(finished(asked=asked, task=asked, adapter=f"adapter {number}"), "chat", f"tenant {number}")
        metrics.spent(f"tenant {number}", number)
        if not number:
            before = len(metrics.render().splitlines())
    lines = metrics.render().decode().splitlines()
    assert len(lines) < before + 33 * (1 + 1 + 2 + 2) + 20  # a line more of each family, and longer ones of histograms
    assert "\n0" not in "\n".join(lines)
    spent = [line for line in lines if line.startswith("tailrace_device_seconds_total{")]
    assert len(spent) == 33
    assert sum(float(line.split()[-1]) for line in spent) == sum(range(1000))


def test_errors_of_other_routes_are_counted_too() -> None:
    metrics = Metrics()
    metrics.failed(Unauthorized("no key"))
    assert sample(metrics, "errors_total", domain="ingress", kind="access") == 1


def test_what_the_process_uses_is_shown() -> None:
    metrics = Metrics()
    for name in ("process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"):
        assert metrics.registry.get_sample_value(name) > 0  # type: ignore[operator]


def test_two_instances_do_not_share_anything() -> None:
    first, second = Metrics(), Metrics()
    first.tokens(5)
    assert sample(first, "generated_tokens_total") == 5
    assert sample(second, "generated_tokens_total") == 0
