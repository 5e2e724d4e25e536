"""What an answer tells its caller about its own time: derived from the Timeline, nothing measured here."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from tailrace.errors import ErrorKind
from tailrace.frozen import frozen
from tailrace.observe.timeline import WAITING, Phase, Timeline


@frozen
class Timings:
    """Milliseconds. `ingress` to `post` add up to `total`. `tpot` is the mean time per token after the first, of the
    longest choice; `ttft` counts from the socket. Of the `drafted_tokens` (guesses that were computed ahead),
    `accepted_tokens` are among the answer's. `adapter` is what was added to the model's weights. None where there was
    no token to measure, and no adapter."""

    ingress_ms: float
    render_ms: float
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    post_ms: float
    total_ms: float
    ttft_ms: float | None
    tpot_ms: float | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    tokens_per_second: float | None
    adapter: str | None = None

    def body(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in _NAMES}


_NAMES = tuple(field.name for field in fields(Timings))
_CALLERS = frozenset((ErrorKind.ACCESS, ErrorKind.FORMAT, ErrorKind.LIMIT, ErrorKind.MISSING, ErrorKind.TOOL))


def timings(timeline: Timeline) -> Timings:
    """Of a request so far."""
    facts: dict[str, Any] = timeline.facts
    get, parts = facts.get, timeline.parts()
    ttft = timeline.since_open(Phase.DECODE)
    decode, tokens, longest = parts[Phase.DECODE], get("completion_tokens", 0), get("longest", 0)
    working = parts[Phase.PREFILL] + decode
    return Timings(
        ingress_ms=parts[Phase.INGRESS] / 1000,
        render_ms=parts[Phase.RENDER] / 1000,
        queue_ms=sum([parts[phase] for phase in WAITING]) / 1000,
        prefill_ms=parts[Phase.PREFILL] / 1000,
        decode_ms=decode / 1000,
        post_ms=parts[Phase.POST] / 1000,
        total_ms=sum(parts.values()) / 1000,
        ttft_ms=None if ttft is None else ttft / 1000,
        tpot_ms=round(decode / (longest - 1) / 1000, 3) if longest > 1 else None,
        prompt_tokens=get("prompt_tokens", 0),
        cached_tokens=get("cached_tokens", 0),
        completion_tokens=tokens,
        drafted_tokens=get("drafted_tokens", 0),
        accepted_tokens=get("accepted_tokens", 0),
        tokens_per_second=round(tokens * 1e6 / working, 2) if tokens and working else None,
        adapter=get("adapter"),
    )


def deadline_met(timeline: Timeline) -> bool | None:
    """Whether the first token came in time; None where there was no deadline, or no token."""
    ttft, deadline = timeline.since_open(Phase.DECODE), timeline.facts.get("deadline")
    return timeline.opened + ttft / 1e6 <= deadline if ttft is not None and isinstance(deadline, float) else None


def served_well(timeline: Timeline) -> bool | None:
    """Of an ended request: whether it was answered, and its first token in time where it was due. None where that hangs
    on the caller, who left before anything was late, or asked for what cannot be had."""
    met = deadline_met(timeline)
    if timeline.outcome == "ok":
        return met is not False
    if timeline.outcome == "cancelled":
        return False if met is False or _overdue(timeline) else None
    return None if timeline.facts.get("error_kind") in _CALLERS else False


def _overdue(timeline: Timeline) -> bool:
    """Whether the first token was due, and there is none."""
    deadline = timeline.facts.get("deadline")
    if timeline.since_open(Phase.DECODE) is not None or not isinstance(deadline, float):
        return False
    return timeline.opened + timeline.total() / 1e6 > deadline
