"""Responses that were asked to be kept, for their tenant alone: to be read again, and to be gone on from.

In memory they are bounded by bytes. Whoever keeps the most gives up their oldest first, so nobody loses theirs to a
tenant that keeps more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tailrace.database.response import KeptResponse


class ResponseStore(Protocol):
    async def put(self, tenant: str, kept: KeptResponse) -> None:
        """It may be given up later, or at once when it is too large."""
        ...

    async def get(self, tenant: str, response_id: str) -> KeptResponse | None:
        """None for another tenant's too."""
        ...

    async def chain(self, tenant: str, response_id: str) -> list[KeptResponse] | None:
        """The response and all before it, oldest first; None when one of them is not kept (any more)."""
        ...

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Whether it was there."""
        ...

    async def close(self) -> None:
        """Before the process ends."""
        ...


class HeldResponses:
    """Of one request: what is to be kept of it is held here, for who makes it outlive the server together with more.
    All else is in `store`."""

    def __init__(self, store: ResponseStore) -> None:
        self.held: KeptResponse | None = None
        self._store = store
        self.get, self.chain, self.delete, self.close = store.get, store.chain, store.delete, store.close

    async def put(self, tenant: str, kept: KeptResponse) -> None:
        self.held = kept


class CountedResponses(Collector):
    """What became of those that were to be in a database. `lost`: they never got there."""

    lost = 0

    @property
    def unwritten(self) -> int:
        """How many wait for it."""
        return 0

    def collect(self) -> Iterator[Metric]:
        waiting, lost = "Kept responses that wait for the database", "Responses that were to be kept and are not"
        yield GaugeMetricFamily("tailrace_responses_unwritten", waiting, value=self.unwritten)
        yield CounterMetricFamily("tailrace_responses_lost", lost, value=self.lost)


class MemoryResponses(CountedResponses):
    """`most`: bytes of all tenants together. What was read last is given up last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[str, OrderedDict[str, KeptResponse]] = {}
        self._sizes: dict[str, int] = {}

    @property
    def size(self) -> int:
        return sum(self._sizes.values())

    async def put(self, tenant: str, kept: KeptResponse) -> None:
        if kept.size > self._most:
            return
        self._kept.setdefault(tenant, OrderedDict())[kept.id] = kept
        self._sizes[tenant] = self._sizes.get(tenant, 0) + kept.size
        while self.size > self._most:
            largest = max(self._sizes, key=self._sizes.__getitem__)
            self._remove(largest, next(iter(self._kept[largest])))

    async def get(self, tenant: str, response_id: str) -> KeptResponse | None:
        own = self._kept.get(tenant)
        if own is None or response_id not in own:
            return None
        own.move_to_end(response_id)
        return own[response_id]

    async def chain(self, tenant: str, response_id: str) -> list[KeptResponse] | None:
        found: list[KeptResponse] = []
        wanted: str | None = response_id
        while wanted is not None:
            kept = await self.get(tenant, wanted)
            if kept is None:
                return None
            found.append(kept)
            wanted = kept.previous
        return found[::-1]

    async def delete(self, tenant: str, response_id: str) -> bool:
        if response_id not in self._kept.get(tenant, {}):
            return False
        self._remove(tenant, response_id)
        return True

    async def close(self) -> None:
        pass

    def _remove(self, tenant: str, response_id: str) -> None:
        self._sizes[tenant] -= self._kept[tenant].pop(response_id).size
        if not self._kept[tenant]:
            del self._kept[tenant], self._sizes[tenant]
