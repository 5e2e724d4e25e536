"""Requests as the queue sees them, for tests of order and prediction."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.control.estimate import Estimate
from tailrace.control.ticket import Ticket
from tailrace.policy import RequestClass


@dataclass(frozen=True, slots=True)
class Entry:
    id: str
    ticket: Ticket

    @property
    def sequences(self) -> int:
        return self.ticket.estimate.sequences

    @property
    def prompt_tokens(self) -> int:
        return self.ticket.estimate.prompt_tokens


def estimate(prompt: int = 100, prefill: float = 1.0, decode: float = 0.0, sequences: int = 1) -> Estimate:
    return Estimate(
        prompt_tokens=prompt,
        uncached_tokens=prompt,
        answer_tokens=10 * sequences,
        sequences=sequences,
        output_mean=10.0,
        output_q80=10.0,
        output_q90=10.0,
        prefill_seconds=prefill,
        decode_seconds=decode,
        blocks=-(-(prompt + 10) // 64),
    )


def entry(
    id: str,
    tenant: str = "a",
    *,
    arrival: float = 0.0,
    deadline: float | None = None,
    weight: float = 1.0,
    band: int = 1,
    kind: RequestClass = RequestClass.INTERACTIVE,
    **costs: float,
) -> Entry:
    group = hash((tenant, kind)) & 0xFFFF
    expected = estimate(**costs)  # type: ignore[arg-type]
    return Entry(id, Ticket(tenant, "", weight, band, kind, "<256", arrival, deadline, group, expected))
