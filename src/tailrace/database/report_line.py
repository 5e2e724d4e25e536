"""What a report reads of each row of the ledger. Without SQL, so that who serves may import it."""

from __future__ import annotations

from typing import NamedTuple


class Line(NamedTuple):
    """As the ledger's columns of these names; `success` is what its tenant said of it."""

    entry_id: str
    tenant: str
    request_class: str
    bucket: str
    model: str
    opened: float
    outcome: str
    queue_us: int
    ttft_us: int | None
    tpot_us: float | None
    total_us: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    device_us: int
    price: int
    deadline_met: bool | None
    success: bool | None
