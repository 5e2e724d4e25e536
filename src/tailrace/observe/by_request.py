"""Where the time of ended requests went, and whether they were served well: derived from closed Timelines alone.

Every label has few values, whatever callers write: classes, lengths and outcomes are closed sets, models those served.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tailrace.figures.buckets import TOKEN_SECONDS
from tailrace.observe.families import Counts, Histograms, counter, summed
from tailrace.observe.timeline import Timeline
from tailrace.observe.timings import Timings, deadline_met, served_well
from tailrace.observe.top import Top

_OF_REQUESTS = ("class", "length", "model", "outcome")
_UNKNOWN = "none"  # what was refused before it was known


class ByRequest:
    """`counts` and `histograms` are what there is to show."""

    def __init__(self) -> None:
        self._errors = Counts("errors", "Requests that failed, by where and why", ("domain", "kind"))
        self._slo = Counts(
            "slo_requests", "Ended requests that the server answers for, and whether it served them well",
            ("class", "length", "met"),
        )  # fmt: skip
        self._deadlines = Counts(
            "deadlines", "First tokens that had a deadline, and whether it was met", ("class", "met")
        )
        self._phases = Histograms("phase_seconds", "Time in each phase of a request", ("phase", *_OF_REQUESTS))
        self._queue = Histograms("queue_seconds", "From knowing a request to its first step", _OF_REQUESTS)
        self._ttft = Histograms("ttft_seconds", "From the socket to the first token", _OF_REQUESTS)
        self._tpot = Histograms("tpot_seconds", "Mean time per token after the first", _OF_REQUESTS, TOKEN_SECONDS)
        self._gap = Histograms("worst_gap_seconds", "Longest time without a new token, once there is one", _OF_REQUESTS)
        self._e2e = Histograms("e2e_seconds", "From the socket to the end of the answer", _OF_REQUESTS)
        self._adapters = _Adapters()
        self.counts = (self._errors, self._slo, self._deadlines, self._adapters)
        self.histograms = (self._phases, self._queue, self._ttft, self._tpot, self._gap, self._e2e)

    def failed(self, domain: str, kind: str) -> None:
        self._errors.at[domain, kind] += 1

    def closed(self, timeline: Timeline, times: Timings) -> None:
        facts, outcome = timeline.facts, timeline.outcome
        assert outcome is not None
        request_class, length = str(facts.get("class") or _UNKNOWN), str(facts.get("bucket") or _UNKNOWN)
        kind = (request_class, length, str(facts.get("base_model") or _UNKNOWN), outcome)
        for phase, microseconds in timeline.parts().items():
            if microseconds:
                self._phases.at[phase, *kind].add(microseconds / 1e6)
        self._e2e.at[kind].add(times.total_ms / 1e3)
        self._queue.at[kind].add(times.queue_ms / 1e3)
        if times.ttft_ms is not None:
            self._ttft.at[kind].add(times.ttft_ms / 1e3)
        if times.tpot_ms is not None:
            self._tpot.at[kind].add(times.tpot_ms / 1e3)
            gap = facts.get("worst_gap")
            if isinstance(gap, float):
                self._gap.at[kind].add(gap)
        self._judge(timeline, request_class, length)
        if times.adapter is not None:
            self._adapters.ended(times.adapter, outcome, times.completion_tokens)

    def _judge(self, timeline: Timeline, request_class: str, length: str) -> None:
        facts = timeline.facts
        if "error_domain" in facts:
            self.failed(str(facts["error_domain"]), str(facts["error_kind"]))
        well = served_well(timeline)
        if well is not None:
            self._slo.at[request_class, length, str(well).lower()] += 1
        met = deadline_met(timeline)
        if met is not None:
            self._deadlines.at[request_class, str(met).lower()] += 1


class _Adapters(Collector):
    """Of each adapter, as long as there are few."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str], float] = {}
        self._tokens: dict[str, float] = {}
        self._top = Top()

    def ended(self, adapter: str, outcome: str, tokens: int) -> None:
        self._requests[adapter, outcome] = self._requests.get((adapter, outcome), 0.0) + 1
        self._tokens[adapter] = self._tokens.get(adapter, 0.0) + tokens

    def collect(self) -> Iterator[Metric]:
        self._top.choose(self._tokens)
        named = self._top.label
        requests = summed(((named(adapter), outcome), n) for (adapter, outcome), n in self._requests.items())
        yield counter("adapter_requests", "Ended requests of an adapter", ("adapter", "outcome"), requests)
        tokens = summed(((named(adapter),), n) for adapter, n in self._tokens.items())
        yield counter("adapter_generated_tokens", "Tokens of their answers", ("adapter",), tokens)
