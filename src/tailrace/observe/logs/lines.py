"""A log record, or the end of a request, as one line: text for people, JSON for machines."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

import orjson

from tailrace.observe.ended import Ended
from tailrace.observe.timeline import Timeline
from tailrace.observe.timings import timings
from tailrace.observe.trace_context import TraceContext

ACCESS = "tailrace.access"
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_CONTROL = {number: f"\\x{number:02x}" for number in (*range(32), 127)} | {10: "\\n", 13: "\\r", 9: "\\t"}
_LONGEST = 16_384  # characters of a text in a line


class Lines(Protocol):
    def of_record(self, record: logging.LogRecord, about: Mapping[str, str]) -> bytes: ...

    def of_end(self, ended: Ended) -> bytes: ...


class TextLines:
    """What follows a line's first is indented, so that no text can pass itself off as a line of its own."""

    def __init__(self, clean: Callable[[str], str]) -> None:
        self._clean = clean

    def of_record(self, record: logging.LogRecord, about: Mapping[str, str]) -> bytes:
        message = _plain(self._clean(record.getMessage()))
        request = about.get("request_id", "")
        if request and request not in message:
            message += f" [request {request}]"
        line = _head(record.created, record.levelname, record.name) + message
        for more in self._clean(_trouble(record)).splitlines():
            line += f"\n  {_plain(more)}"
        return _bytes(line)

    def of_end(self, ended: Ended) -> bytes:
        said = {name: value for name, value in access_fields(ended).items() if value not in (None, "")}
        first = " ".join(str(said.pop(name)) for name in ("method", "path", "status", "outcome") if name in said)
        rest = " ".join(f"{name}={_shown(value)}" for name, value in said.items())
        return _bytes(_head(ended.wall, "INFO", ACCESS) + f"{first} {_plain(rest)}")


class JsonLines:
    def __init__(self, clean: Callable[[str], str]) -> None:
        self._clean = clean

    def of_record(self, record: logging.LogRecord, about: Mapping[str, str]) -> bytes:
        line = _json_head(record.created, record.levelname, record.name)
        line["message"] = self._clean(record.getMessage())[:_LONGEST]
        line |= about
        for name, value in vars(record).items():
            if name not in _STANDARD:  # the event's own, given as `extra`
                line.setdefault(name, value if isinstance(value, int | float) else self._clean(str(value))[:_LONGEST])
        trouble = _trouble(record)
        if trouble:
            line["exception"] = self._clean(trouble)[-_LONGEST:]
        return _json(line)

    def of_end(self, ended: Ended) -> bytes:
        line = _json_head(ended.wall, "INFO", ACCESS)
        line["message"] = f"{ended.method or 'line'} {ended.path} {ended.status} {ended.outcome}"
        said = access_fields(ended)
        return _json({**line, **{name: value for name, value in said.items() if value not in (None, "")}})


def access_fields(ended: Ended) -> dict[str, object]:
    """What there is to say of a request's end, in this order. Phases and totals are in milliseconds."""
    timeline, facts = ended.timeline, ended.timeline.facts
    context = facts.get("trace")
    return {
        "method": ended.method,
        "path": ended.path,
        "status": ended.status,
        "outcome": ended.outcome,
        "error": ended.error,
        "error_domain": facts.get("error_domain"),
        "tenant": ended.tenant,
        "class": facts.get("class"),
        "model": facts.get("model"),
        "total_ms": timeline.total() / 1000,
        **(_of_tokens(timeline) if "route" in facts else {}),
        "request_id": ended.request_id,
        "job": ended.job,
        "trace_id": context.trace if isinstance(context, TraceContext) else None,
    }


def _of_tokens(timeline: Timeline) -> dict[str, object]:
    times = timings(timeline)
    return {
        "ttft_ms": times.ttft_ms,
        "tpot_ms": times.tpot_ms,
        "prompt_tokens": times.prompt_tokens,
        "cached_tokens": times.cached_tokens,
        "completion_tokens": times.completion_tokens,
        "phases_ms": {phase.value: length / 1000 for phase, length in timeline.parts().items() if length},
    }


def _head(seconds: float, level: str, logger: str) -> str:
    moment = datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    return f"{moment} {level} {logger}: "


def _json_head(seconds: float, level: str, logger: str) -> dict[str, Any]:
    moment = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return {"ts": moment.replace("+00:00", "Z"), "level": level.lower(), "logger": logger}


def _trouble(record: logging.LogRecord) -> str:
    """The traceback, if there is one."""
    if record.exc_info and record.exc_info[1] is not None:
        return "".join(traceback.format_exception(record.exc_info[1]))
    return record.exc_text or record.stack_info or ""


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{name}:{amount:g}" for name, amount in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _plain(text: str) -> str:
    return text[:_LONGEST].translate(_CONTROL)


def _bytes(line: str) -> bytes:
    return line.encode("utf-8", "replace") + b"\n"


def _json(line: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
    except (TypeError, ValueError):  # half a surrogate pair, or a number beyond 64 bits
        return orjson.dumps({name: _encodable(value) for name, value in line.items()}, option=orjson.OPT_APPEND_NEWLINE)


def _encodable(value: object) -> object:
    return value if isinstance(value, dict) else str(value).encode("utf-8", "replace").decode()
