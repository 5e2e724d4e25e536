"""What the serving plane holds right now, as plain data for people: `GET /admin/state` and `tailrace top` show it.

Reads, changes nothing. Prompts and answers are not in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from tailrace.control.pipeline import Pipeline
from tailrace.control.run import Run

Data = dict[str, Any]


def snapshot(pipeline: Pipeline) -> Data:
    """Names say the unit: `_s` seconds, `_ms` milliseconds; the rest are counts, or parts of 1."""
    backend, dispatch = pipeline.backend, pipeline.dispatch
    load, seen, looks = backend.load(), backend.inspect(), backend.outlook()
    waiting, running = pipeline.waiting_runs(), list(dispatch.running.values())
    return {
        "model": ", ".join(backend.caps.models),
        "draining": pipeline.draining,
        "requests": {"running": pipeline.running, "waiting": pipeline.waiting},
        "queues": _queues(waiting, pipeline.clock.now()),
        "running": [_run(run, pipeline.clock.now()) for run in running],
        "tenants": _tenants(pipeline, waiting, running),
        "kv": {
            "total": load.kv_blocks_total,
            "free": seen.kv_free,
            "cached": seen.kv_cached,
            "referenced": seen.kv_referenced,
            "block_tokens": backend.caps.block_tokens,
        },
        "tails": pipeline.metrics.recent.tails(),
        "rejects": dict(pipeline.metrics.rejects),
        "step": {
            "count": seen.steps,
            "seconds": load.step_seconds,
            "chunk_tokens": looks.chunk if looks.decodes else looks.idle_chunk,
            "decode_rows": looks.decodes,
            "error_p50": seen.step_error_p50,
            "error_p90": seen.step_error_p90,
        },
        "prediction": _prediction(pipeline),
    }


def _queues(waiting: Iterable[Run], now: float) -> list[Data]:
    """By class and tenant."""
    lines: dict[tuple[str, str], Data] = {}
    for run in waiting:
        name, tenant = run.ticket.request_class.value, run.ticket.tenant
        line = lines.setdefault(
            (name, tenant), {"class": name, "tenant": tenant, "requests": 0, "prompt_tokens": 0, "oldest_s": 0.0}
        )
        line["requests"] += 1
        line["prompt_tokens"] += run.prompt_tokens
        line["oldest_s"] = max(line["oldest_s"], now - run.ticket.arrival)
    return list(lines.values())


def _run(run: Run, now: float) -> Data:
    return {
        "id": run.id,
        "tenant": run.ticket.tenant,
        "class": run.ticket.request_class.value,
        "phase": "decode" if run.generated else "prefill",
        "prompt_tokens": run.prompt_tokens,
        "cached_tokens": run.cached_tokens,
        "generated": run.generated,
        "max_tokens": run.sequences * run.request.stop.max_tokens,
        "age_s": now - run.ticket.arrival,
    }


def _tenants(pipeline: Pipeline, waiting: Sequence[Run], running: Sequence[Run]) -> list[Data]:
    waits, runs = (Counter(run.ticket.tenant for run in each) for each in (waiting, running))
    return [
        {
            "name": tenant.name,
            "weight": tenant.weight,
            "priority": tenant.priority,
            "limits": {name: limit for name, limit in asdict(tenant.limits).items() if limit},
            "running": runs[tenant.name],
            "waiting": waits[tenant.name],
            "device_seconds": pipeline.device_seconds[tenant.name],
        }
        for tenant in pipeline.tenants
    ]


def _prediction(pipeline: Pipeline) -> Data:
    """Actual over predicted, by quantity: 1 is exact."""
    found: dict[str, Data] = {}
    for name, part, ratio in pipeline.dispatch.foresight.quantiles():
        found.setdefault(name, {})[f"p{part * 100:.0f}"] = ratio
    return found
