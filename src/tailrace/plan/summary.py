"""A simulation as numbers: distributions by class, prompt length and tenant, what was refused, how well it was used.

Pure; the shape is that of the JSON file. Latencies are of answered requests; rates are over the simulated time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tailrace.figures.numbers import distribution
from tailrace.figures.slo import Slo
from tailrace.plan.record import Record
from tailrace.plan.simulator import Outcome
from tailrace.units import LENGTH_BUCKETS, length_bucket

Summary = dict[str, Any]
LATENCIES = ("queue", "ttft", "tpot", "worst_gap", "e2e")


def summarize(outcome: Outcome, slo: Slo) -> Summary:
    records, seconds = outcome.records, outcome.seconds
    good = [record for record in records if record.ok]
    return {
        "seconds": round(seconds, 6),
        "requests": len(records),
        "answered": len(good),
        **_rates(good, seconds),
        **_goodput(records, slo, seconds),
        "latency": _latency(good),
        "classes": _groups(records, slo, lambda record: record.request_class),
        "lengths": _groups(records, slo, lambda record: length_bucket(record.prompt_tokens), LENGTH_BUCKETS),
        "tenants": _groups(records, slo, lambda record: record.client),
        "refusals": _refusals(records),
        "jain": jain(_served(records).values()),
        "prediction": _prediction(good),
        "engine": _engine(outcome, good),
    }


def jain(shares: Iterable[float]) -> float | None:
    """Jain's index of fairness: 1 when all are equal, 1/n when one has everything (Jain, Chiu and Hawe 1984)."""
    values = [share for share in shares if share > 0]
    if not values:
        return None
    return round(sum(values) ** 2 / (len(values) * sum(value * value for value in values)), 6)


def _rates(good: Sequence[Record], seconds: float) -> Summary:
    def rate(count: int) -> float:
        return round(count / seconds, 4) if seconds else 0.0

    return {
        "requests_per_s": rate(len(good)),
        "input_tokens_per_s": rate(sum(record.prompt_tokens for record in good)),
        "output_tokens_per_s": rate(sum(record.made for record in good)),
    }


def _goodput(records: Sequence[Record], slo: Slo, seconds: float) -> Summary:
    if not slo or not records:
        return {"goodput_per_s": None, "attainment": None}
    met = sum(slo.met(record) for record in records)
    return {
        "goodput_per_s": round(met / seconds, 4) if seconds else 0.0,
        "attainment": round(met / len(records), 6),
    }


def _latency(good: Sequence[Record]) -> Summary:
    return {f"{name}_ms": distribution(getattr(record, name) for record in good) for name in LATENCIES}


def _groups(
    records: Sequence[Record], slo: Slo, key: Callable[[Record], str], order: Sequence[str] | None = None
) -> Summary:
    """By `key`, in `order`, or else the largest group first."""
    members: dict[str, list[Record]] = {}
    for record in records:
        members.setdefault(key(record), []).append(record)
    names = order or sorted(members, key=lambda name: (-len(members[name]), name))
    return {name: _group(members[name], slo) for name in names if name in members}


def _group(records: Sequence[Record], slo: Slo) -> Summary:
    good = [record for record in records if record.ok]
    return {
        "requests": len(records),
        "answered": len(good),
        "attainment": round(sum(map(slo.met, records)) / len(records), 6) if slo else None,
        **_latency(good),
    }


def _served(records: Sequence[Record]) -> dict[str, float]:
    """Standard device-seconds by tenant."""
    served: dict[str, float] = {}
    for record in records:
        served[record.client] = served.get(record.client, 0.0) + record.cost
    return served


def _refusals(records: Sequence[Record]) -> Summary:
    """`obeyed`: attempts that came back when they were told to; `let_in`: those of them that were let in."""
    reasons = Counter(refusal.reason for record in records for refusal in record.refusals)
    obeyed = sum(len(record.refusals) - (0 if record.ok else 1) for record in records if record.refusals)
    return {
        "by_reason": dict(reasons.most_common()),
        "retry_after_s": distribution((r.retry_after for record in records for r in record.refusals), 1.0),
        "without_retry_after": sum(r.retry_after is None for record in records for r in record.refusals),
        "obeyed": obeyed,
        "let_in": sum(record.ok and bool(record.refusals) for record in records),
        "never_answered": sum(not record.ok for record in records),
    }


def _prediction(good: Sequence[Record]) -> Summary | None:
    """|actual - predicted| / actual time to the first token, as it was told at the door."""
    errors = [abs(r.ttft - r.predicted_ttft) / r.ttft for r in good if r.ttft and r.predicted_ttft is not None]
    return distribution(errors, 1.0)


def _engine(outcome: Outcome, good: Sequence[Record]) -> Summary:
    stats, steps, seconds = outcome.stats, outcome.steps, outcome.seconds
    computed = stats.prefill_tokens + stats.decode_tokens
    prompts = sum(record.prompt_tokens for record in good)
    return {
        "steps": steps.steps,
        "row_decisions": steps.rows,
        "busy": round(steps.busy / seconds, 6) if seconds else 0.0,
        "rows_per_step": _ratio(steps.rows, steps.steps),
        "tokens_per_step": _ratio(computed, steps.steps),
        "hit_ratio": _ratio(sum(record.cached_tokens for record in good), prompts),
        "thrash": _ratio(stats.recomputed_tokens, computed),
        "preemptions": stats.preemptions,
        "evictions": stats.evictions,
    }


def _ratio(part: float, whole: float) -> float:
    return round(part / whole, 6) if whole else 0.0
