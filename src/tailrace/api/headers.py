"""What an answer's headers say of its way: from the Timeline, so that they cannot differ from the record."""

from __future__ import annotations

from tailrace.errors import InvalidRequest
from tailrace.observe.timeline import WAITING, Timeline
from tailrace.observe.trace_context import TraceContext
from tailrace.protocol.sampling import MOST_TASK, is_task

_FACTS = (("tenant", b"x-tailrace-tenant"), ("class", b"x-tailrace-class"), ("bucket", b"x-tailrace-length"))
DEADLINE = "x-tailrace-deadline-ms"
TASK = "x-tailrace-task"


def trail(timeline: Timeline) -> list[tuple[bytes, bytes]]:
    """Nothing about what has not been reached."""
    facts = timeline.facts
    headers = [(name, str(facts[fact]).encode("latin-1", "replace")) for fact, name in _FACTS if fact in facts]
    if headers:
        waited = sum(map(timeline.parts().__getitem__, WAITING))
        headers.append((b"x-tailrace-queue-ms", b"%.3f" % (waited / 1000)))
    context = facts.get("trace")
    if isinstance(context, TraceContext):
        headers.append((b"traceresponse", context.header()))
    predicted = facts.get("predicted_ttft")
    if isinstance(predicted, float):
        headers.append((b"x-tailrace-predicted-ttft-ms", b"%.0f" % (predicted * 1000)))
    return headers


def deadline(value: str | None) -> float | None:
    """Seconds from the socket in which the caller wants the first token. Raises InvalidRequest."""
    if value is None:
        return None
    text = value.strip()
    if not (text.isascii() and text.isdigit()) or not 0 < len(text) < 10 or int(text) == 0:
        raise InvalidRequest(
            f"the header {DEADLINE} is {value[:40]!a}; expected are whole milliseconds, above 0",
            param=DEADLINE,
        )
    return int(text) / 1000


def task(value: str | None) -> str:
    """What the caller calls the thing that this request is a part of; empty without one. Raises InvalidRequest."""
    if value is None:
        return ""
    if not is_task(value):
        raise InvalidRequest(
            f"the header {TASK} is {value[:40]!a}; expected are 1 to {MOST_TASK} printable ASCII characters", param=TASK
        )
    return value
