"""The result of a benchmark as plain data: what the JSON file holds, and what table, charts and compare read."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from tailrace.bench.options import Options
from tailrace.bench.record import Record
from tailrace.bench.summary import Summary
from tailrace.errors import ConfigError

FORMAT = 1


@dataclass(slots=True)
class Run:
    """One measurement. `load`: the concurrency or rate of it; None when a trace gives the times."""

    label: str
    load: float | None
    summary: Summary
    records: list[Record]


@dataclass(slots=True)
class Report:
    options: Options
    started: float  # seconds since the epoch
    server: dict[str, Any]
    runs: list[Run] = field(default_factory=list)
    knee: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def data(self) -> dict[str, Any]:
        options = asdict(self.options) | {"key": "(given)" if self.options.key else ""}
        return {
            "tailrace_bench": FORMAT,
            "started": self.started,
            "server": self.server,
            "options": options,
            "interrupted": self.interrupted,
            "notes": self.notes,
            "knee": self.knee,
            "runs": [_run(run) for run in self.runs],
        }


def _run(run: Run) -> dict[str, Any]:
    start = min((record.scheduled for record in run.records), default=0.0)
    return {
        "label": run.label,
        "load": run.load,
        "summary": run.summary,
        "requests": [_request(record, start) for record in run.records],
    }


def _request(record: Record, start: float) -> dict[str, Any]:
    """Times in milliseconds from the run's start; `gaps_ms` between pieces of the answer."""

    def ms(moment: float | None) -> float | None:
        return None if moment is None else round((moment - start) * 1000, 3)

    return {
        "index": record.index,
        "talk": record.talk,
        "turn": record.turn,
        "scheduled_ms": ms(record.scheduled),
        "sent_ms": ms(record.sent),
        "first_ms": ms(record.first),
        "end_ms": ms(record.end),
        "gaps_ms": [round(gap * 1000, 3) for gap in record.gaps()],
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "output_tokens": record.output_tokens,
        "counted": record.counted,
        "queue_ms": None if record.queue is None else round(record.queue * 1000, 3),
        "status": record.status,
        "error": record.error,
        "retries": record.retries,
        "retry_after_s": record.retry_after,
        "finish": record.finish,
    }


def read(path: Path) -> dict[str, Any]:
    """A file that `--json` made. Raises ConfigError."""
    try:
        data = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(data, dict) or data.get("tailrace_bench") != FORMAT:
        raise ConfigError(f"{path}: not a result of `tailrace bench --json` of this version")
    return data
