"""GenAI's metrics of a model server, with the bounds of their buckets that the convention recommends."""

from __future__ import annotations

from opentelemetry.metrics import Histogram, Meter

from tailrace.observe.ended import Ended
from tailrace.observe.otel.attributes import of_metrics, operation
from tailrace.observe.timings import timings

_DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_EACH = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKENS = tuple(4**power for power in range(14))


class GenAiMeter:
    """Token counts have a name below `gen_ai.client`: the convention has none for servers, and this is the one that
    people's dashboards look for."""

    def __init__(self, meter: Meter) -> None:
        self._duration = _histogram(meter, "gen_ai.server.request.duration", "s", _DURATION)
        self._first = _histogram(meter, "gen_ai.server.time_to_first_token", "s", _FIRST)
        self._each = _histogram(meter, "gen_ai.server.time_per_output_token", "s", _EACH)
        self._tokens = _histogram(meter, "gen_ai.client.token.usage", "{token}", _TOKENS)

    def record(self, ended: Ended) -> None:
        """Nothing for what was not a model's work. Times of tokens only of what succeeded."""
        if not operation(ended.timeline):
            return
        times, kind = timings(ended.timeline), of_metrics(ended.timeline)
        failed = {"error.type": ended.error} if ended.error else {}
        self._duration.record(times.total_ms / 1e3, {**kind, **failed})
        for token, count in (("input", times.prompt_tokens), ("output", times.completion_tokens)):
            if count:
                self._tokens.record(count, {**kind, "gen_ai.token.type": token})
        if failed:
            return
        if times.ttft_ms is not None:
            self._first.record(times.ttft_ms / 1e3, kind)
        if times.tpot_ms is not None:
            self._each.record(times.tpot_ms / 1e3, kind)


def _histogram(meter: Meter, name: str, unit: str, bounds: tuple[float, ...]) -> Histogram:
    return meter.create_histogram(name, unit, explicit_bucket_boundaries_advisory=bounds)
