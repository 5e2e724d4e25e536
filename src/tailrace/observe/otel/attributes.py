"""A request in OpenTelemetry's words: the GenAI and HTTP conventions, and ours below `tailrace.`.

Data only: nothing here needs OpenTelemetry. No text of prompts or answers is among it.
"""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.observe.ended import Ended
from tailrace.observe.timeline import Phase, Timeline

Value = str | int | float | bool
PROVIDER = "tailrace"
OPERATIONS = {"chat": "chat", "responses": "chat", "messages": "chat", "completions": "text_completion"}
_NAME_LENGTH = 200  # characters of a name that the caller chose
# Facts that are attributes of the same name below `tailrace.`
_OWN = (
    "class", "class_reason", "band", "bucket", "adapter", "cached_tokens", "drafted_tokens", "accepted_tokens",
    "uncached_estimate", "estimated_seconds", "predicted_ttft", "preemptions", "recomputed_tokens", "kv_blocks",
    "device_us", "price", "error_domain", "error_kind",
)  # fmt: skip


def operation(timeline: Timeline) -> str:
    """Empty for what is not a model's work."""
    route = str(timeline.facts.get("route", ""))
    return OPERATIONS.get(route, route)


def span_name(ended: Ended) -> str:
    kind, model = operation(ended.timeline), ended.timeline.facts.get("model")
    if kind:
        return f"{kind} {model}" if model else kind
    return f"{ended.method} {ended.path}".strip()


def of_metrics(timeline: Timeline) -> dict[str, Value]:
    """Only names that the server gives: a caller must not make up new series."""
    found: dict[str, Value] = {"gen_ai.operation.name": operation(timeline), "gen_ai.provider.name": PROVIDER}
    model = timeline.facts.get("model")
    if isinstance(model, str):
        found["gen_ai.request.model"] = found["gen_ai.response.model"] = model
    return found


def of_request(ended: Ended) -> dict[str, Value]:
    """Of its span."""
    facts = ended.timeline.facts
    found: dict[str, Value | None] = {
        "http.request.method": ended.method or None,
        "http.route": ended.path or None,
        "http.response.status_code": ended.status or None,
        "error.type": ended.error or None,
        "tailrace.request_id": ended.request_id,
        "tailrace.tenant": ended.tenant or None,
        "tailrace.task": getattr(facts.get("traits"), "task", None) or None,
        "tailrace.job": ended.job or None,
        "tailrace.outcome": ended.outcome,
    }
    if operation(ended.timeline):
        found |= of_metrics(ended.timeline) | _of_answer(facts)
    found |= {f"tailrace.{name}": _plain(facts.get(name)) for name in _OWN}
    found |= _of_decisions(facts)
    ttft = ended.timeline.since_open(Phase.DECODE)
    found["tailrace.ttft_seconds"] = None if ttft is None else ttft / 1e6
    return {name: value for name, value in found.items() if value is not None}


def of_phase(phase: Phase, timeline: Timeline) -> dict[str, Value]:
    """Of the span of a phase: what decided how long it took."""
    facts = timeline.facts
    chosen: dict[Phase, dict[str, object]] = {
        Phase.LIMIT: {"tailrace.limit": _limit(facts)},
        Phase.PREFILL: {
            "gen_ai.usage.input_tokens": facts.get("prompt_tokens"),
            "gen_ai.usage.cache_read.input_tokens": facts.get("cached_tokens"),
        },
        Phase.DECODE: {"gen_ai.usage.output_tokens": facts.get("completion_tokens")},
    }
    found = {name: _plain(value) for name, value in chosen.get(phase, {}).items()}
    return {name: value for name, value in found.items() if value is not None}


def _of_answer(facts: Mapping[str, object]) -> dict[str, Value | None]:
    asked = facts.get("asked")
    found: dict[str, Value | None] = {
        "gen_ai.response.id": _plain(facts.get("answer")),
        "gen_ai.request.stream": _plain(facts.get("stream")),
        "gen_ai.usage.input_tokens": _plain(facts.get("prompt_tokens")),
        "gen_ai.usage.output_tokens": _plain(facts.get("completion_tokens")),
        "gen_ai.usage.cache_read.input_tokens": _plain(facts.get("cached_tokens")),
    }
    if isinstance(asked, str):
        found["gen_ai.request.model"] = asked[:_NAME_LENGTH].encode("utf-8", "replace").decode()
    return found


def _of_decisions(facts: Mapping[str, object]) -> dict[str, Value | None]:
    admission = facts.get("admission")
    return {
        "tailrace.admission": None if admission is None else type(admission).__name__.lower(),
        "tailrace.admission.reason": _plain(getattr(admission, "reason", None)),
        "tailrace.limit": _limit(facts),
    }


def _limit(facts: Mapping[str, object]) -> Value | None:
    """The one that it waited for, or that refused it."""
    met = facts.get("limit")
    return _plain(met.get("limit")) if isinstance(met, Mapping) else None


def _plain(value: object) -> Value | None:
    return value if isinstance(value, str | int | float) else None
