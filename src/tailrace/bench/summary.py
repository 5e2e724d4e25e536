"""Records to numbers: distributions, throughput, goodput, buckets, errors. Pure; the shape is that of the JSON file.

Latencies are of answered requests and count from when a request was scheduled. Throughput and goodput are over the
time from the first schedule to the last end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tailrace.bench.record import Record
from tailrace.figures.numbers import distribution
from tailrace.figures.slo import Slo
from tailrace.units import LENGTH_BUCKETS, length_bucket

Summary = dict[str, Any]


def summarize(records: Sequence[Record], slo: Slo) -> Summary:
    """One run."""
    good = [record for record in records if record.ok]
    seconds = _span(records)
    return {
        "seconds": round(seconds, 6),
        "requests": len(records),
        "answered": len(good),
        "errors": dict(Counter(record.error for record in records if record.error is not None).most_common()),
        "error_examples": {record.error: record.message for record in reversed(records) if record.error is not None},
        "retries": sum(record.retries for record in records),
        "retry_after_s": distribution((r.retry_after for r in records), 1.0),
        "throughput": _throughput(good, seconds),
        "tokens": _tokens(good),
        "latency": _latency(good),
        "dispatch_lag_ms": distribution(record.lag for record in records),
        **_goodput(records, slo, seconds),
        "buckets": _buckets(records, slo),
    }


def _span(records: Sequence[Record]) -> float:
    ends = [record.end for record in records if record.end is not None]
    return max(ends) - min(record.scheduled for record in records) if ends else 0.0


def _throughput(good: Sequence[Record], seconds: float) -> dict[str, float]:
    def rate(count: int) -> float:
        return round(count / seconds, 4) if seconds else 0.0

    return {
        "requests_per_s": rate(len(good)),
        "input_tokens_per_s": rate(sum(record.prompt_tokens or 0 for record in good)),
        "output_tokens_per_s": rate(sum(record.output_tokens for record in good)),
    }


def _tokens(good: Sequence[Record]) -> dict[str, Any]:
    known = [r for r in good if r.prompt_tokens is not None and r.asked_prompt is not None]
    off = [abs((r.prompt_tokens or 0) - (r.asked_prompt or 0)) for r in known]
    return {
        "prompt": sum(record.prompt_tokens or 0 for record in good),
        "cached": sum(record.cached_tokens or 0 for record in good),
        "output": sum(record.output_tokens for record in good),
        "counted_by": dict(Counter(record.counted for record in good)),
        "prompts_off_by": {"mean": round(sum(off) / len(off), 3), "max": max(off)} if off else None,
        "outputs_short": sum(record.output_tokens < record.asked_output for record in good),
        "prompt_lengths": distribution((r.prompt_tokens for r in good), 1.0),
        "output_lengths": distribution((r.output_tokens for r in good), 1.0),
    }


def _latency(good: Sequence[Record]) -> dict[str, Any]:
    return {
        "ttft_ms": distribution(record.ttft for record in good),
        "tpot_ms": distribution(record.tpot for record in good),
        "worst_gap_ms": distribution(record.worst_gap for record in good),
        "gap_ms": distribution(gap for record in good for gap in record.gaps()),
        "e2e_ms": distribution(record.e2e for record in good),
        "queue_ms": distribution(record.queue for record in good),
    }


def _goodput(records: Sequence[Record], slo: Slo, seconds: float) -> dict[str, Any]:
    if not slo:
        return {"goodput_per_s": None, "attainment": None}
    met = sum(slo.met(record) for record in records)
    return {
        "goodput_per_s": round(met / seconds, 4) if seconds else 0.0,
        "attainment": round(met / len(records), 6) if records else None,
    }


def _buckets(records: Sequence[Record], slo: Slo) -> dict[str, Any]:
    """By prompt length as the server counted it, as asked where it did not say."""
    sorted_in: dict[str, list[Record]] = {}
    for record in records:
        size = record.prompt_tokens if record.prompt_tokens is not None else record.asked_prompt
        if size is not None:
            sorted_in.setdefault(length_bucket(size), []).append(record)
    return {name: _bucket(sorted_in[name], slo) for name in LENGTH_BUCKETS if name in sorted_in}


def _bucket(records: Sequence[Record], slo: Slo) -> dict[str, Any]:
    good = [record for record in records if record.ok]
    return {
        "requests": len(records),
        "errors": len(records) - len(good),
        "ttft_ms": distribution(record.ttft for record in good),
        "tpot_ms": distribution(record.tpot for record in good),
        "worst_gap_ms": distribution(record.worst_gap for record in good),
        "e2e_ms": distribution(record.e2e for record in good),
        "attainment": round(sum(map(slo.met, records)) / len(records), 6) if slo else None,
    }
