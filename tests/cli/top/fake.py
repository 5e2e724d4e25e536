"""A server's state that a test writes, and what the operator did."""

from __future__ import annotations

from typing import Any

from tailrace.cli.top.source import State
from tailrace.errors import TailraceError


def state(**fields: Any) -> State:
    tails = {"count": 40, "mean": 120.0, "p50": 90.0, "p95": 480.5, "p99": 1250.0, "max": 2100.0}
    return {
        "model": "some-model",
        "uptime_s": 3723.0,
        "draining": False,
        "requests": {"running": 2, "waiting": 5},
        "queues": [
            {"class": "interactive", "tenant": "acme", "requests": 4, "prompt_tokens": 900, "oldest_s": 1.25},
            {"class": "background", "tenant": "nightly", "requests": 1, "prompt_tokens": 6000, "oldest_s": 75.0},
        ],
        "running": [
            run("chatcmpl-1", tenant="acme", phase="decode", generated=37, age_s=4.0),
            run("chatcmpl-2", tenant="nightly", **{"class": "background"}, phase="prefill", age_s=2.0),
        ],
        "tenants": [
            {"name": "acme", "weight": 3.0, "limits": {"requests_per_minute": 60}, "running": 1, "waiting": 4,
             "device_seconds": 12.5},
            {"name": "nightly", "weight": 1.0, "limits": {}, "running": 1, "waiting": 1, "device_seconds": 80.25},
        ],
        "kv": {"total": 100, "free": 30, "cached": 20, "referenced": 50, "block_tokens": 64},
        "tails": {"queue_ms": tails, "ttft_ms": tails, "tpot_ms": None, "total_ms": tails},
        "rejects": {"queue_full": 7, "draining": 1},
        "step": {"seconds": 0.085, "chunk_tokens": 128, "decode_rows": 1, "error_p50": 0.04, "error_p90": 0.12},
        "prediction": {"ttft": {"p50": 1.02, "p90": 1.31}},
    } | fields  # fmt: skip


def run(request_id: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": request_id, "tenant": "default", "class": "interactive", "phase": "decode", "prompt_tokens": 120,
        "cached_tokens": 64, "generated": 0, "max_tokens": 256, "age_s": 1.0,
    } | fields  # fmt: skip


class FakeSource:
    name = "http://fake"

    def __init__(self) -> None:
        self.now = state()
        self.fault: TailraceError | None = None
        self.asked = 0
        self.cancelled: list[str] = []
        self.changed: list[tuple[str, dict[str, Any]]] = []
        self.closed = False

    async def state(self) -> State:
        self.asked += 1
        if self.fault is not None:
            raise self.fault
        return self.now

    async def cancel(self, request_id: str) -> None:
        if self.fault is not None:
            raise self.fault
        self.cancelled.append(request_id)

    async def change(self, tenant: str, fields: dict[str, Any]) -> None:
        self.changed.append((tenant, fields))

    async def close(self) -> None:
        self.closed = True
