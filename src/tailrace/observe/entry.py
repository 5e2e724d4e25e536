"""One row of the ledger: what is remembered of a request for good, made from its closed Timeline.

The answer's `timings`, the metrics and this derive from the same Timeline, so their sums agree exactly. It holds no
text of prompts or answers. Times are whole microseconds, wall times seconds since the epoch.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

import orjson

from tailrace.database.entry_id import new_entry_id
from tailrace.frozen import frozen
from tailrace.observe.timeline import WAITING, Phase, Timeline
from tailrace.observe.timings import deadline_met
from tailrace.types import Formats, Traits

_LONGEST = 128  # characters of what a caller wrote
_PHASES = tuple((phase, phase.value) for phase in Phase)
_PLAIN = Traits()
_UNKNOWN = Formats()
_DECIDED = ("band", "uncached_estimate", "estimated_seconds", "limit")


@frozen
class About:
    """What is known of a request besides its Timeline: its ids, whose it is and where it came in. `status` is that of
    the HTTP answer, 0 where none was sent. Callers may repeat a request id."""

    request_id: str
    answer_id: str
    route: str
    tenant: str
    key: str = ""
    status: int = 0
    job_id: str = ""


@frozen
class Entry:
    """`entry_id` is of this row alone and begins with the time of opening, so that its order is that of time.

    `model` is the one that served, `model_asked` the caller's word; an adapter is named beside its model. Counts are of
    what was computed: prompts from their first step on, tokens that never reached a client too. `kv_blocks` is the most
    that were held at once. Device time is in microseconds: `device_us` by frozen costs, `measured_us` its part of what
    steps took. `price` is in millionths. `phases` add up to `total_us`. `decisions` says why, with the numbers.
    """

    entry_id: str
    request_id: str
    answer_id: str
    server: str
    opened: float
    ended: float
    tenant: str
    key: str
    task: str
    route: str
    origin: str
    job_id: str
    request_class: str
    class_reason: str
    bucket: str
    attachments: int
    tools: bool
    streamed: bool
    model_asked: str
    model: str
    adapter: str
    weights_format: str
    kv_format: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    recomputed_tokens: int
    preemptions: int
    kv_blocks: int
    phases: dict[str, int]
    queue_us: int
    ttft_us: int | None
    tpot_us: float | None
    total_us: int
    device_us: int
    measured_us: int
    outcome: str
    status: int
    error_code: str
    error_domain: str
    predicted_ttft: float | None
    deadline_met: bool | None
    decisions: dict[str, Any]
    price: int

    def row(self) -> dict[str, Any]:
        """As the table has it."""
        row: dict[str, Any] = {name: getattr(self, name) for name in _NAMES}
        for name in _JSON:
            row[name] = orjson.dumps(row[name], default=str).decode()
        return row

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> Entry:
        return cls(**{**row, **{name: orjson.loads(row[name]) for name in _JSON}})


_NAMES = tuple(field.name for field in fields(Entry))
_JSON = ("phases", "decisions")
_KINDS = {name: get_args(kind) or (kind,) for name, kind in get_type_hints(Entry).items() if name not in _JSON}


def is_row(value: dict[str, Any]) -> bool:
    """Whether it is what `row` gives, and not of another version or half a line."""
    if value.keys() != set(_NAMES):
        return False
    return all(isinstance(value[name], kinds) for name, kinds in _KINDS.items()) and all(
        isinstance(value[name], str) for name in _JSON
    )


def entry(about: About, timeline: Timeline, *, server: str, ended: float) -> Entry:
    """Of a closed timeline, which `ended` then by the wall clock. `server`: the instance that served it."""
    assert timeline.outcome is not None
    facts: dict[str, Any] = timeline.facts
    get, parts, total = facts.get, timeline.parts(), timeline.total()
    traits, formats = get("traits", _PLAIN), get("formats", _UNKNOWN)
    opened = ended - total / 1e6
    decode, longest = parts[Phase.DECODE], get("longest", 0)
    return Entry(
        entry_id=new_entry_id(opened),
        request_id=about.request_id,
        answer_id=about.answer_id,
        server=server,
        opened=opened,
        ended=ended,
        tenant=about.tenant,
        key=about.key,
        task=traits.task,
        route=about.route,
        origin=traits.origin,
        job_id=about.job_id,
        request_class=get("class") or "",
        class_reason=get("class_reason") or "",
        bucket=get("bucket") or "",
        attachments=traits.attachments,
        tools=traits.tools,
        streamed=bool(get("stream")),
        model_asked=_written(get("asked") or ""),
        model=get("base_model") or "",
        adapter=get("adapter") or "",
        weights_format=formats.weights,
        kv_format=formats.kv,
        prompt_tokens=get("prompt_tokens", 0),
        cached_tokens=get("cached_tokens", 0),
        completion_tokens=get("completion_tokens", 0),
        drafted_tokens=get("drafted_tokens", 0),
        accepted_tokens=get("accepted_tokens", 0),
        recomputed_tokens=get("recomputed_tokens", 0),
        preemptions=get("preemptions", 0),
        kv_blocks=get("kv_blocks", 0),
        phases={name: parts[phase] for phase, name in _PHASES if parts[phase]},
        queue_us=sum([parts[phase] for phase in WAITING]),
        ttft_us=timeline.since_open(Phase.DECODE),
        tpot_us=decode / (longest - 1) if longest > 1 else None,
        total_us=total,
        device_us=get("device_us", 0),
        measured_us=get("measured_us", 0),
        outcome=timeline.outcome,
        status=about.status,
        error_code=get("error") or "",
        error_domain=get("error_domain") or "",
        predicted_ttft=_number(get("predicted_ttft")),
        deadline_met=deadline_met(timeline),
        decisions=_decisions(facts),
        price=get("price", 0),
    )


def _decisions(facts: dict[str, object]) -> dict[str, Any]:
    found = {name: facts[name] for name in _DECIDED if name in facts}
    admission = facts.get("admission")
    if admission is not None:
        found["admission"] = _plain(admission)
    if "error_about" in facts:
        found["error"] = facts["error_about"]
    return found


def _plain(decision: Any) -> dict[str, Any]:
    """A decision's name and numbers, one within it too."""
    said: dict[str, Any] = {"decision": type(decision).__name__.lower()}
    for name in decision.__slots__:
        value = getattr(decision, name)
        said[name] = _plain(value) if is_dataclass(value) else value
    return said


def _written(text: str) -> str:
    """What a caller wrote, as every database takes it."""
    return text[:_LONGEST].encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def _number(value: object) -> float | None:
    """None also for what has no end: JSON and reports know no infinity."""
    return value if isinstance(value, float) and value < 1e9 else None
