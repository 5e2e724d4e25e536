"""What each tenant has had since the start. The metrics name a bounded number of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tailrace.observe.families import Labels, counter, summed
from tailrace.observe.top import MOST, Top


class ByTenant(Collector):
    def __init__(self, most: int = MOST) -> None:
        self.device_seconds: defaultdict[str, float] = defaultdict(float)  # standard, of ended requests
        self._requests: defaultdict[Labels, float] = defaultdict(float)  # by tenant and outcome
        self._tokens: defaultdict[Labels, float] = defaultdict(float)  # by tenant and kind
        self._top = Top(most)

    def ended(self, tenant: str, outcome: str, prompt_tokens: int, generated_tokens: int) -> None:
        self._requests[tenant, outcome] += 1
        if prompt_tokens:
            self._tokens[tenant, "prompt"] += prompt_tokens
            self._tokens[tenant, "generated"] += generated_tokens

    def collect(self) -> Iterator[Metric]:
        requests = {name: count for (name,), count in summed(((t,), n) for (t, _), n in self._requests.items()).items()}
        self._top.choose({**requests, **self.device_seconds})
        named = self._top.label
        seconds = summed(((named(tenant),), spent) for tenant, spent in self.device_seconds.items())
        yield counter("device_seconds", "Standard device-seconds of ended requests", ("tenant",), seconds)
        ends = summed(((named(tenant), outcome), n) for (tenant, outcome), n in self._requests.items())
        yield counter("tenant_requests", "Requests of a tenant that ended", ("tenant", "outcome"), ends)
        tokens = summed(((named(tenant), kind), n) for (tenant, kind), n in self._tokens.items())
        yield counter("tenant_tokens", "Their tokens, cached ones too", ("tenant", "kind"), tokens)
