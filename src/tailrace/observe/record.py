"""Why a request went the way it did: the decisions about it and the time of each phase, readable after its end.

Made from the Timeline once it is closed. The latest are kept in memory; who may read which is decided elsewhere.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, is_dataclass

from tailrace.observe.timeline import WAITING, Phase, Timeline

_KEPT = 2048
_SHOWN = (
    "class", "class_reason", "band", "bucket", "uncached_estimate", "estimated_seconds", "predicted_ttft",
    "prompt_tokens", "cached_tokens", "completion_tokens", "adapter",
)  # fmt: skip
_WHY = {
    Phase.LOAD: "its model had to be loaded",
    Phase.LIMIT: "its tenant's own limits had no room yet",
    Phase.WAIT: "others came first in the fair order, or the machine had no room",
    Phase.QUEUE: "the backend was working on a step",
}


class Records:
    """Closed timelines by the ids of their requests."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Timeline] = OrderedDict()

    def add(self, request_id: str, timeline: Timeline) -> None:
        """Of a closed timeline; nothing for one that never got as far as a decision."""
        if "tenant" not in timeline.facts:
            return
        self._kept[request_id] = timeline
        self._kept.move_to_end(request_id)
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)

    def find(self, request_id: str, tenant: str) -> dict[str, object] | None:
        """None also for another tenant's: that it exists is nobody else's business."""
        kept = self._kept.get(request_id)
        return record(request_id, kept) if kept is not None and kept.facts["tenant"] == tenant else None


def record(request_id: str, timeline: Timeline) -> dict[str, object]:
    parts, facts = timeline.parts(), timeline.facts
    ttft = timeline.since_open(Phase.DECODE)
    return {
        "id": request_id,
        "outcome": timeline.outcome,
        **{name: facts.get(name) for name in _SHOWN},
        "admission": _decision(facts.get("admission")),
        "limit": facts.get("limit"),
        "phases_ms": {phase.value: parts[phase] / 1000 for phase in Phase},
        "total_ms": timeline.total() / 1000,
        "ttft_ms": None if ttft is None else ttft / 1000,
        "waited": [
            {"phase": phase.value, "ms": parts[phase] / 1000, "because": _WHY[phase]}
            for phase in WAITING
            if phase in _WHY and parts[phase] >= 1000
        ],
    }


def _decision(decision: object) -> object:
    if not is_dataclass(decision) or isinstance(decision, type):
        return None
    return {"decision": type(decision).__name__.lower(), **asdict(decision)}
