"""Why a request went the way it did: the decisions about it and the time of each phase, readable after its end.

Made from its entry in the ledger. The latest are kept in memory too; who may read which is decided elsewhere.
"""

from __future__ import annotations

from collections import OrderedDict

from tailrace.observe.entry import Entry
from tailrace.observe.timeline import WAITING, Phase

_KEPT = 2048
_SHOWN = (
    "server", "opened", "ended", "tenant", "key", "task", "route", "origin", "job_id", "outcome", "status",
    "error_code", "error_domain", "model_asked", "model", "adapter", "weights_format", "kv_format", "class_reason",
    "bucket", "attachments", "tools", "streamed", "prompt_tokens", "cached_tokens", "completion_tokens",
    "drafted_tokens", "accepted_tokens", "recomputed_tokens", "preemptions", "kv_blocks", "predicted_ttft",
    "deadline_met",
)  # fmt: skip
_WHY = {
    Phase.LOAD: "its model had to be loaded",
    Phase.LIMIT: "its tenant's own limits had no room yet",
    Phase.WAIT: "others came first in the fair order, or the machine had no room",
    Phase.QUEUE: "the backend was working on a step",
}


class Records:
    """The latest entries by the ids of their requests, and of their answers. The newest of an id that was repeated."""

    def __init__(self) -> None:
        self._latest: OrderedDict[str, Entry] = OrderedDict()  # by entry id
        self._known: dict[str, Entry] = {}  # by the other ids

    def add(self, entry: Entry) -> None:
        self._latest[entry.entry_id] = entry
        self._known[entry.request_id] = self._known[entry.answer_id] = entry
        if len(self._latest) > _KEPT:
            _, old = self._latest.popitem(last=False)
            for name in (old.request_id, old.answer_id):
                if self._known.get(name) is old:
                    del self._known[name]

    def of(self, tenant: str) -> list[Entry]:
        return [entry for entry in self._latest.values() if entry.tenant == tenant]

    def find(self, name: str, tenant: str) -> Entry | None:
        """By any of its ids. None also for another tenant's: that it exists is nobody else's business."""
        found = self._latest.get(name) or self._known.get(name)
        return found if found is not None and found.tenant == tenant else None


def record(entry: Entry) -> dict[str, object]:
    """For people. Names say the unit."""
    return {
        "id": entry.request_id,
        "entry_id": entry.entry_id,
        "answer_id": entry.answer_id,
        **{name: getattr(entry, name) for name in _SHOWN},
        "class": entry.request_class,
        "admission": None,
        "limit": None,
        **entry.decisions,
        "phases_ms": {phase.value: entry.phases.get(phase.value, 0) / 1000 for phase in Phase},
        "queue_ms": entry.queue_us / 1000,
        "total_ms": entry.total_us / 1000,
        "ttft_ms": _ms(entry.ttft_us),
        "tpot_ms": _ms(entry.tpot_us),
        "device_seconds": entry.device_us / 1e6,
        "measured_seconds": entry.measured_us / 1e6,
        "price": entry.price,
        "waited": [
            {"phase": phase.value, "ms": spent / 1000, "because": _WHY[phase]}
            for phase in WAITING
            if phase in _WHY and (spent := entry.phases.get(phase.value, 0)) >= 1000
        ],
    }


def _ms(microseconds: float | None) -> float | None:
    return None if microseconds is None else microseconds / 1000
