"""What the serving plane holds right now, as plain data for people: `GET /admin/state` and `tailrace top` show it.

Reads, changes nothing. Prompts and answers are not in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from tailrace.backends.base import Backend
from tailrace.control.pipeline import Pipeline
from tailrace.control.run import Run
from tailrace.types import Inspection, LoadReport

Data = dict[str, Any]


def snapshot(pipeline: Pipeline) -> Data:
    """Names say the unit: `_s` seconds, `_ms` milliseconds; the rest are counts, or parts of 1."""
    backends = [lane.backend for lane in pipeline.lanes]
    load, waits, runs = pipeline.load(), pipeline.waiting_runs(), pipeline.runs()
    seen = [backend.inspect() for backend in backends]
    return {
        "model": ", ".join(name for backend in backends for name in backend.caps.models),
        "draining": pipeline.draining,
        "requests": {"running": pipeline.running, "waiting": pipeline.waiting},
        "tokens": pipeline.metrics.token_counts(),
        "queues": _queues(waits, pipeline.clock.now()),
        "running": running(pipeline),
        "tenants": _tenants(pipeline, waits, runs),
        "kv": {
            "total": load.kv_blocks_total,
            "free": sum(each.kv_free for each in seen),
            "cached": sum(each.kv_cached for each in seen),
            "referenced": sum(each.kv_referenced for each in seen),
            "block_tokens": backends[0].caps.block_tokens if backends else 0,
        },
        "tails": pipeline.metrics.recent.tails(),
        "rejects": dict(pipeline.metrics.rejects),
        "restarts": pipeline.watchdog.report(),
        "step": _steps(backends, seen, load),
        "prediction": _prediction(pipeline),
    }


def _steps(backends: Sequence[Backend], seen: Sequence[Inspection], load: LoadReport) -> Data:
    looks = [backend.outlook() for backend in backends]
    return {
        "count": sum(each.steps for each in seen),
        "seconds": load.step_seconds,
        "chunk_tokens": max((each.chunk if each.decodes else each.idle_chunk for each in looks), default=0),
        "decode_rows": sum(each.decodes for each in looks),
        "error_p50": max((each.step_error_p50 for each in seen), default=0.0),
        "error_p90": max((each.step_error_p90 for each in seen), default=0.0),
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


def waiting(pipeline: Pipeline, most: int) -> list[Data]:
    """The first requests that wait, in their order."""
    now = pipeline.clock.now()
    return [
        {
            "id": run.id,
            "tenant": run.ticket.tenant,
            "key": run.ticket.key,
            "class": run.ticket.request_class.value,
            "waits_for": "machine" if run.hold.granted else "limit",
            "prompt_tokens": run.prompt_tokens,
            "age_s": now - run.ticket.arrival,
            "deadline_in_s": None if run.ticket.deadline is None else run.ticket.deadline - now,
        }
        for run in pipeline.waiting_runs()[:most]
    ]


def running(pipeline: Pipeline) -> list[Data]:
    return [_run(run, pipeline.clock.now()) for run in pipeline.runs()]


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
    for name, part, ratio in pipeline.quantiles():
        found.setdefault(name, {})[f"p{part * 100:.0f}"] = ratio
    return found
