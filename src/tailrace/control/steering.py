"""Requests that an operator ends."""

from __future__ import annotations

import re

from tailrace.control.pipeline import Pipeline
from tailrace.errors import Domain, NotFound, Unavailable

_PROMPT = re.compile(r"(?<=[0-9a-f]{32})-\d+$")  # which of several prompts of a request


def cancel(pipeline: Pipeline, request_id: str) -> int:
    """End a request wherever it is; its client gets an error. Returns how many of its prompts were ended.

    Raises NotFound when none of that name waits or runs."""
    runs = [*pipeline.waiting_runs(), *pipeline.runs()]
    found = [run for run in runs if request_id in (run.id, _PROMPT.sub("", run.id))]
    if not found:
        raise NotFound(f"No request {request_id} waits or runs", code="request_not_found")
    for run in found:
        run.fail(_ended_by_operator())
    return len(found)


def _ended_by_operator() -> Unavailable:
    return Unavailable("The request was ended by an operator", code="cancelled_by_operator", domain=Domain.EXECUTION)
