"""How much of a step's prefill budget one prompt may take, by its class."""

from __future__ import annotations

from tailrace.control.ticket import Ticket
from tailrace.policy import RequestClass

_LONG = 0.125  # so that the step a short prompt arrives in is soon over


def step_share(ticket: Ticket) -> float:
    """Part of the budget, at most."""
    return _LONG if ticket.request_class is RequestClass.LONG else 1.0
