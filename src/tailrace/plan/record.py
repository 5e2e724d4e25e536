"""What happened to one request of a simulation, as its client saw it and as its Timeline has it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.frozen import frozen
from tailrace.observe.timeline import Timeline
from tailrace.observe.timings import timings


@frozen
class Refusal:
    """`retry_after` in seconds; None: trying again would not help."""

    at: float
    status: int
    reason: str
    retry_after: float | None


@dataclass(slots=True)
class Record:
    """Times in seconds of the simulation. Latencies count from the attempt that was let in."""

    index: int
    client: str
    arrival: float
    prompt_tokens: int
    output_tokens: int
    request_class: str = ""
    refusals: list[Refusal] = field(default_factory=list)
    end: float | None = None
    made: int = 0
    queue: float | None = None
    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None
    worst_gap: float | None = None
    cached_tokens: int = 0
    preemptions: int = 0
    cost: float = 0.0  # standard device-seconds
    predicted_ttft: float | None = None  # of the last attempt, when it was decided about

    @property
    def ok(self) -> bool:
        return self.e2e is not None

    def finish(self, timeline: Timeline, now: float) -> None:
        """Take the times over when the answer is complete."""
        found = timings(timeline)
        self.end, self.made = now, found.completion_tokens
        self.queue = found.queue_ms / 1000
        self.ttft = None if found.ttft_ms is None else found.ttft_ms / 1000
        self.tpot = None if found.tpot_ms is None else found.tpot_ms / 1000
        self.e2e = found.total_ms / 1000
        self.cached_tokens = found.cached_tokens
