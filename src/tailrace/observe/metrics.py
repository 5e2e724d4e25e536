"""Prometheus metrics: names, buckets, and how they derive from a finished Timeline. Own registry, nothing global.

Gauges are functions read at scrape time, so they cannot drift from the state they show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from tailrace.observe.recent import Recent
from tailrace.observe.timeline import Timeline
from tailrace.observe.timings import deadline_met, timings
from tailrace.types import LoadReport
from tailrace.units import length_bucket

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1)


F = TypeVar("F", Counter, Histogram)


class Metrics:
    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "tailrace_requests",
            "HTTP requests that ended, by route and outcome",
            ["route", "outcome"],
            registry=registry,
        )
        self._rejects = Counter("tailrace_rejects", "Requests refused, by reason", ["reason"], registry=registry)
        self._limited = Counter(
            "tailrace_limit_waits", "Requests that had to wait for a limit", ["limit"], registry=registry
        )
        self._shadowed = Counter(
            "tailrace_shadow_refusals", "Requests that a limit would have stopped, were it enforced", ["limit"],
            registry=registry,
        )  # fmt: skip
        self._deadlines = Counter(
            "tailrace_deadlines", "First tokens that had a deadline, and whether it was met", ["class", "met"],
            registry=registry,
        )  # fmt: skip
        self._spent = Counter(
            "tailrace_device_seconds", "Standard device-seconds of ended requests", ["tenant"], registry=registry
        )
        self._adapted = Counter(
            "tailrace_adapter_requests", "Ended requests of an adapter", ["adapter", "outcome"], registry=registry
        )
        self._adapted_tokens = Counter(
            "tailrace_adapter_generated_tokens", "Tokens of their answers", ["adapter"], registry=registry
        )
        self._restarts = Counter(
            "tailrace_engine_restarts", "Engines that did not go on and were restarted, by reason", ["reason"],
            registry=registry,
        )  # fmt: skip
        kind = ("class", "length")
        self._phases = _histogram("phase_seconds", "Time in each phase of a request", ("phase", *kind), registry)
        self._ttft = _histogram("ttft_seconds", "From the socket to the first token", kind, registry)
        self._e2e = _histogram("e2e_seconds", "From the socket to the end of the answer", kind, registry)
        self._tpot = _histogram("tpot_seconds", "Mean time per token after the first", kind, registry, _TOKEN_SECONDS)
        self._tokens = _Tokens()
        registry.register(self._tokens)
        self._recomputed = _counter("recomputed_tokens", "Tokens computed again after preemption", registry)
        self._preemptions = _counter("preemptions", "Sequences that were preempted", registry)
        self._bound: dict[tuple[object, ...], Any] = {}  # families with their labels: finding one anew costs more
        self.recent = Recent()
        self.rejects: dict[str, int] = {}  # by reason, since the start

    def watch(self, running: Callable[[], int], waiting: Callable[[], int], load: Callable[[], LoadReport]) -> None:
        """Show the state of a pipeline and its backend. Once per instance."""
        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "requests_running": ("Requests that a backend works on", running),
            "requests_waiting": ("Requests accepted and not started", waiting),
            "sequences_running": ("Sequences in prefill or decode", lambda: load().running),
            "sequences_waiting": ("Sequences waiting in the backend (preempted ones too)", lambda: load().waiting),
            "kv_blocks_total": ("KV blocks", lambda: load().kv_blocks_total),
            "kv_blocks_free": ("KV blocks free or evictable", lambda: load().kv_blocks_free),
            "kv_blocks_used": ("KV blocks in use", lambda: load().kv_blocks_total - load().kv_blocks_free),
            "step_seconds": ("Typical time of the last engine steps", lambda: load().step_seconds),
            "step_time_error": ("Typical error of their predicted time, as a part of it", lambda: load().step_error),
            "draft_acceptance_rate": ("Accepted part of the drafted tokens", lambda: _acceptance(load())),
        }
        for name, (text, read) in gauges.items():
            Gauge(f"tailrace_{name}", text, registry=self.registry).set_function(read)
        self.registry.register(_EngineCounts(load))

    def watch_predictions(self, quantiles: Callable[[], Iterable[tuple[str, float, float]]]) -> None:
        """Show how right predictions are: (quantity, quantile, actual / predicted). Once per instance."""
        self.registry.register(_Predictions(quantiles))

    def tokens(self, generated: int) -> None:
        self._tokens.generated += generated

    def prefilled(self, prompt_tokens: int, cached_tokens: int) -> None:
        self._tokens.prompt += prompt_tokens
        self._tokens.cached += cached_tokens

    def token_counts(self) -> dict[str, int]:
        """Tokens of prompts, those of them found in the prefix cache, and generated ones, since the start."""
        return {"prompt": self._tokens.prompt, "cached": self._tokens.cached, "generated": self._tokens.generated}

    def preempted(self, times: int, recomputed_tokens: int) -> None:
        if times or recomputed_tokens:
            self._preemptions.inc(times)
            self._recomputed.inc(recomputed_tokens)

    def rejected(self, reason: str) -> None:
        self._of(self._rejects, reason).inc()
        self.rejects[reason] = self.rejects.get(reason, 0) + 1

    def restarted(self, reason: str) -> None:
        self._of(self._restarts, reason).inc()

    def limited(self, limit: str) -> None:
        self._of(self._limited, limit).inc()

    def spent(self, tenant: str, device_seconds: float) -> None:
        self._of(self._spent, tenant).inc(device_seconds)

    def shadowed(self, limit: str) -> None:
        self._of(self._shadowed, limit).inc()

    def closed(self, timeline: Timeline, route: str) -> None:
        """Count a finished request; times only of those that made a token."""
        assert timeline.outcome is not None
        self._of(self._requests, route, timeline.outcome).inc()
        times = timings(timeline)
        if times.adapter is not None:
            self._of(self._adapted, times.adapter, timeline.outcome).inc()
            self._of(self._adapted_tokens, times.adapter).inc(times.completion_tokens)
        if times.ttft_ms is None:
            return
        self.recent.add(times)
        kind = (str(timeline.facts.get("class", "")), length_bucket(times.prompt_tokens))
        for phase, microseconds in timeline.parts().items():
            if microseconds:
                self._of(self._phases, phase, *kind).observe(microseconds / 1e6)
        self._of(self._ttft, *kind).observe(times.ttft_ms / 1e3)
        self._of(self._e2e, *kind).observe(times.total_ms / 1e3)
        if times.tpot_ms is not None:
            self._of(self._tpot, *kind).observe(times.tpot_ms / 1e3)
        met = deadline_met(timeline)
        if met is not None:
            self._of(self._deadlines, kind[0], str(met).lower()).inc()

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)

    def _of(self, family: F, *labels: str) -> F:
        key = (family, *labels)
        found: F | None = self._bound.get(key)
        if found is None:
            found = self._bound[key] = family.labels(*labels)
        return found


def _acceptance(load: LoadReport) -> float:
    return load.accepted_tokens / load.drafted_tokens if load.drafted_tokens else 0.0


class _Tokens(Collector):
    """Counted with each step of each request, so as plain numbers: the library's counters lock."""

    def __init__(self) -> None:
        self.prompt = self.cached = self.generated = 0

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "tailrace_prompt_tokens", "Prompt tokens of requests that were started", value=self.prompt
        )
        yield CounterMetricFamily(
            "tailrace_cached_tokens", "Prompt tokens found in the prefix cache", value=self.cached
        )
        yield CounterMetricFamily("tailrace_generated_tokens", "Tokens generated", value=self.generated)


class _Predictions(Collector):
    """Actual over predicted, by quantity."""

    def __init__(self, quantiles: Callable[[], Iterable[tuple[str, float, float]]]) -> None:
        self._quantiles = quantiles

    def collect(self) -> Iterator[Metric]:
        shown = GaugeMetricFamily(
            "tailrace_prediction_ratio",
            "What requests took over what was predicted, of recent ones",
            labels=("quantity", "quantile"),
        )
        for quantity, part, ratio in self._quantiles():
            shown.add_metric((quantity, f"{part:g}"), ratio)
        yield shown


class _EngineCounts(Collector):
    """What the backend counts itself: how long it took to free what aborted requests held, and drafted tokens."""

    def __init__(self, load: Callable[[], LoadReport]) -> None:
        self._load = load

    def collect(self) -> Iterator[Metric]:
        load = self._load()
        yield SummaryMetricFamily(
            "tailrace_cancel_seconds",
            "From a client's leaving to its slots and blocks being free",
            count_value=load.aborts,
            sum_value=load.abort_seconds,
        )
        drafted, accepted = load.drafted_tokens, load.accepted_tokens
        yield CounterMetricFamily("tailrace_drafted_tokens", "Tokens guessed and computed ahead", value=drafted)
        yield CounterMetricFamily("tailrace_accepted_tokens", "Drafted tokens that were right", value=accepted)


def _counter(name: str, text: str, registry: CollectorRegistry) -> Counter:
    return Counter(f"tailrace_{name}", text, registry=registry)


def _histogram(
    name: str, text: str, labels: tuple[str, ...], registry: CollectorRegistry, buckets: tuple[float, ...] = _SECONDS
) -> Histogram:
    return Histogram(f"tailrace_{name}", text, labels, buckets=buckets, registry=registry)
