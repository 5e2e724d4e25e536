"""What happened to one request: its moments, counts and error. Times in seconds on the run's clock."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(slots=True)
class Record:
    """`scheduled` is when it should have been sent: latencies count from there, so a late sender hides nothing.

    `first` and `end`: first text and finish. `chunks`: arrival of each piece of text. `counted` says where
    `output_tokens` comes from: the server's usage, its tokenizer, or the number of pieces (an estimate).
    """

    index: int
    talk: int
    turn: int
    scheduled: float
    sent: float
    asked_prompt: int | None
    asked_output: int
    first: float | None = None
    end: float | None = None
    chunks: array[float] = field(default_factory=lambda: array("d"))
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int = 0
    counted: str = "usage"
    queue: float | None = None  # seconds in the server's queue, as it says
    status: int = 0
    error: str | None = None  # None: answered; else a short key such as "429 queue_full"
    message: str = ""
    retry_after: float | None = None
    retries: int = 0
    finish: str = ""

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def ttft(self) -> float | None:
        return None if self.first is None else self.first - self.scheduled

    @property
    def e2e(self) -> float | None:
        return None if self.end is None else self.end - self.scheduled

    @property
    def tpot(self) -> float | None:
        """Mean time per token after the first; None for an answer of one token."""
        if self.first is None or self.end is None or self.output_tokens < 2:
            return None
        return (self.end - self.first) / (self.output_tokens - 1)

    @property
    def lag(self) -> float:
        return self.sent - self.scheduled

    def gaps(self) -> list[float]:
        """Times between pieces of text."""
        return [after - before for before, after in pairwise(self.chunks)]

    @property
    def worst_gap(self) -> float | None:
        return max(self.gaps(), default=None)
