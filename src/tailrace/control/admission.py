"""Whether a request may wait or start: one pure decision with its reason, from numbers that the pipeline holds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tailrace.config import ControlConfig
from tailrace.errors import QueueFull, TailraceError, Unavailable


class Verdict(StrEnum):
    ADMIT = "admit"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What is there already. `held` are requests past the door whose prompt is still being worked on."""

    held: int
    queued: int
    queued_tokens: int
    room: int  # sequences that could start now, if their prompts are short
    draining: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """`lacking_requests`, `lacking_tokens`: how much must leave before the answer would be different."""

    verdict: Verdict
    reason: str
    lacking_requests: int = 0
    lacking_tokens: int = 0


def at_the_door(arriving: int, there: Occupancy, config: ControlConfig) -> Decision:
    """Before any work on the prompt: `arriving` requests (prompts of one HTTP request)."""
    if there.draining:
        return Decision(Verdict.REJECT, "draining")
    places = config.max_waiting_requests + max(there.room, 0)
    excess = there.held + there.queued + arriving - places
    if excess > 0 and not _alone(there):
        return Decision(Verdict.REJECT, "queue_full", lacking_requests=excess)
    if there.queued and there.queued_tokens >= config.max_waiting_tokens:
        lacking = there.queued_tokens - config.max_waiting_tokens + 1
        return Decision(Verdict.REJECT, "queue_tokens_full", lacking_tokens=lacking)
    return Decision(Verdict.ADMIT, "place_free")


def into_the_queue(prompt_tokens: int, fits: bool, there: Occupancy, config: ControlConfig) -> Decision:
    """With the prompt's length known; its place among the waiting requests was taken at the door. `fits`: the backend
    has room for it."""
    if there.draining:
        return Decision(Verdict.REJECT, "draining")
    if not there.queued and fits:
        return Decision(Verdict.ADMIT, "starts_now")
    excess = there.queued_tokens + prompt_tokens - config.max_waiting_tokens
    if excess > 0 and there.queued:
        return Decision(Verdict.REJECT, "queue_tokens_full", lacking_tokens=excess)
    return Decision(Verdict.ADMIT, "waits")


def refusal(decision: Decision, there: Occupancy, config: ControlConfig, retry_after: float) -> TailraceError:
    """The error a caller gets for a rejection; `retry_after` in seconds."""
    if decision.reason == "draining":
        return Unavailable("The server is stopping and takes no new work", code="draining", retry_after=retry_after)
    if decision.reason == "queue_full":
        text = f"{there.held + there.queued} requests are waiting already; at most {config.max_waiting_requests} may"
    else:
        text = f"{there.queued_tokens} prompt tokens are waiting already; at most {config.max_waiting_tokens} may"
    return QueueFull(f"{text}. Try again after {retry_after:.1f} s", code=decision.reason, retry_after=retry_after)


def _alone(there: Occupancy) -> bool:
    """Nothing waits and something could start: a request with more prompts than places must not be refused for ever."""
    return there.room > 0 and not there.held and not there.queued
