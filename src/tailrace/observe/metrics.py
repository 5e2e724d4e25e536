"""Prometheus metrics of one server: its own registry, nothing global, and how the text of a scrape is made.

What requests were is counted here as they end (`by_request`, `by_tenant`); what there is at the moment is read from
whoever holds it when somebody looks (`show`), so that it cannot drift. Written on one event loop, without locks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from tailrace.errors import TailraceError
from tailrace.observe.by_request import ByRequest
from tailrace.observe.by_tenant import ByTenant
from tailrace.observe.families import Counts, Histograms, counter, gauge
from tailrace.observe.recent import Recent
from tailrace.observe.timeline import Timeline
from tailrace.observe.timings import timings


class Metrics:
    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._shown: list[Collector] = []
        self._requests = Counts("requests", "HTTP requests that ended, by route and outcome", ("route", "outcome"))
        self._rejects = Counts("rejects", "Requests refused, by reason", ("reason",))
        self._limited = Counts("limit_waits", "Requests that had to wait for a limit", ("limit",))
        self._shadowed = Counts(
            "shadow_refusals", "Requests that a limit would have stopped, were it enforced", ("limit",)
        )
        self._restarts = Counts(
            "engine_restarts", "Engines that did not go on and were restarted, by reason", ("reason",)
        )
        self._tokens = _Tokens()
        self._by_request = ByRequest()
        self._by_tenant = ByTenant()
        self.recent = Recent()
        self.ready = False  # as whoever asks for a scrape has found
        self.show(
            self._requests, self._rejects, self._limited, self._shadowed, self._restarts, self._tokens,
            self._by_tenant, *self._by_request.counts, _Server(self), ProcessCollector(registry=None),
        )  # fmt: skip
        for histograms in self._by_request.histograms:
            self.registry.register(histograms)

    @property
    def rejects(self) -> dict[str, int]:
        """By reason, since the start."""
        return {reason: int(count) for (reason,), count in self._rejects.at.items()}

    def show(self, *collectors: Collector) -> None:
        """Ask these too, at each scrape."""
        for collector in collectors:
            self.registry.register(collector)
            self._shown.append(collector)

    def tokens(self, generated: int) -> None:
        self._tokens.generated += generated

    def prefilled(self, prompt_tokens: int, cached_tokens: int) -> None:
        self._tokens.prompt += prompt_tokens
        self._tokens.cached += cached_tokens

    def token_counts(self) -> dict[str, int]:
        """Tokens of prompts, those of them found in the prefix cache, and generated ones, since the start."""
        return {"prompt": self._tokens.prompt, "cached": self._tokens.cached, "generated": self._tokens.generated}

    def preempted(self, times: int, recomputed_tokens: int) -> None:
        self._tokens.preemptions += times
        self._tokens.recomputed += recomputed_tokens

    def rejected(self, reason: str) -> None:
        self._rejects.at[reason,] += 1

    def restarted(self, reason: str) -> None:
        self._restarts.at[reason,] += 1

    def limited(self, limit: str) -> None:
        self._limited.at[limit,] += 1

    def spent(self, tenant: str, device_seconds: float) -> None:
        self._by_tenant.device_seconds[tenant] += device_seconds

    def shadowed(self, limit: str) -> None:
        self._shadowed.at[limit,] += 1

    def failed(self, error: TailraceError) -> None:
        """A request that no generating route has: of those, `closed` counts it."""
        self._by_request.failed(error.domain.value, error.kind.value)

    def closed(self, timeline: Timeline, route: str, tenant: str = "default") -> None:
        """Count a finished request."""
        outcome = timeline.outcome
        assert outcome is not None
        times = timings(timeline)
        self._requests.at[route, outcome] += 1
        self._by_request.closed(timeline, times)
        self._by_tenant.ended(tenant, outcome, times.prompt_tokens, times.completion_tokens)
        if times.ttft_ms is not None:
            self.recent.add(times)

    def render(self) -> bytes:
        """The exposition text."""
        return self.scrape().text()

    def scrape(self, *, tenants: bool = True) -> Scrape:
        """What everything is now, with or without what names tenants. Its text can be made in another thread, which
        takes longer than this."""
        shown = [each for each in self._shown if tenants or each is not self._by_tenant]
        families = [family for collector in shown for family in collector.collect()]
        return Scrape(families, self._by_request.histograms)


class Scrape:
    def __init__(self, families: Sequence[Metric], histograms: Sequence[Histograms]) -> None:
        """Histograms are read when the text is made."""
        self._families = families
        self._histograms = histograms

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)

    def text(self) -> bytes:
        text = generate_latest(self)  # which it only collects from
        return text + "".join([each.text() for each in self._histograms]).encode()


class _Tokens(Collector):
    """Counted with each step of each request, so as plain numbers."""

    def __init__(self) -> None:
        self.prompt = self.cached = self.generated = self.preemptions = self.recomputed = 0

    def collect(self) -> Iterator[Metric]:
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens of requests that were started", self.prompt),
            ("cached_tokens", "Prompt tokens found in the prefix cache", self.cached),
            ("generated_tokens", "Tokens generated", self.generated),
            ("preemptions", "Sequences that were preempted", self.preemptions),
            ("recomputed_tokens", "Tokens computed again after preemption", self.recomputed),
        ):
            yield counter(name, text, (), {(): value})


class _Server(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._version = version("tailrace")

    def collect(self) -> Iterator[Metric]:
        yield gauge("build_info", "Which version this is", ("version",), {(self._version,): 1})
        text = "Whether new work is taken and makes progress"
        yield gauge("ready", text, (), {(): int(self._metrics.ready)})
