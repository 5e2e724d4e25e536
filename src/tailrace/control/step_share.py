"""What a request's prompt is to the steps that compute it: how much of their budget it may take, by its class."""

from __future__ import annotations

from math import inf

from tailrace.control.classes import Band
from tailrace.control.ticket import Ticket
from tailrace.policy import RequestClass
from tailrace.types import Prefill

_LONG = 0.125  # so that the step a short prompt arrives in is soon over


def step_share(ticket: Ticket) -> float:
    """Part of the budget, at most."""
    return _LONG if ticket.request_class is RequestClass.LONG else 1.0


def prompt_of(ticket: Ticket, todo: int, done: int = 0) -> Prefill:
    """With so many tokens to do behind those that are done."""
    deadline = inf if ticket.deadline is None else ticket.deadline
    background = ticket.band == Band.BACKGROUND
    return Prefill(todo, done, ticket.share_group, ticket.weight, step_share(ticket), background, deadline)
