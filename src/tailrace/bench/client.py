"""Sends one generating request, streamed, and makes the record of it. Never raises for what a server does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from tailrace.bench.http import Http, error_detail, json_object
from tailrace.bench.pace import Pace
from tailrace.bench.record import Record
from tailrace.bench.sse import Reading
from tailrace.bench.workload import Prompt
from tailrace.frozen import frozen

REFUSALS = (429, 503)
DEFAULT_WAIT = 1.0  # seconds before a retry when the server names none
LONGEST_WAIT = 60.0


@dataclass(frozen=True, slots=True)
class Shape:
    """How this server is asked: what the probe found it to take."""

    model: str
    chat: bool
    usage: bool = True
    fixed: bool = True  # ignore_eos and min_tokens
    temperature: float = 0.0

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def body(self, prompt: Prompt, output_tokens: int) -> bytes:
        fields: dict[str, Any] = {"model": self.model, "stream": True, "max_tokens": output_tokens}
        fields["temperature"] = self.temperature
        if self.chat:
            fields["messages"] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        else:
            fields["prompt"] = prompt
        if self.fixed:
            fields |= {"ignore_eos": True, "min_tokens": output_tokens}
        if self.usage:
            fields["stream_options"] = {"include_usage": True}
        return orjson.dumps(fields)


@frozen
class Ask:
    """One request to send, and where it belongs. `scheduled` None: now."""

    prompt: Prompt
    output_tokens: int
    index: int = 0
    talk: int = 0
    turn: int = 0
    scheduled: float | None = None
    asked_prompt: int | None = None


class Client:
    """`retry`: wait as told after 429 and 503 and send again, for up to `patience` seconds of one request's life."""

    def __init__(self, http: Http, shape: Shape, pace: Pace, *, retry: bool = False, patience: float = 600.0) -> None:
        self._http, self._shape, self._pace = http, shape, pace
        self._retry, self._patience = retry, patience
        self._url = http.base + shape.path

    async def send(self, ask: Ask) -> tuple[Record, str]:
        """The record and the answer's text."""
        body = self._shape.body(ask.prompt, ask.output_tokens)
        sent = self._pace.now()
        scheduled = sent if ask.scheduled is None else ask.scheduled
        record = Record(ask.index, ask.talk, ask.turn, scheduled, sent, ask.asked_prompt, ask.output_tokens)
        text = await self._once(body, record)
        while self._again(record):
            await self._pace.until(self._pace.now() + _wait(record.retry_after))
            record.retries += 1
            record.error, record.message = None, ""
            text = await self._once(body, record)
        return record, text

    def _again(self, record: Record) -> bool:
        waited = self._pace.now() - record.scheduled + _wait(record.retry_after)
        return self._retry and record.status in REFUSALS and record.error is not None and waited < self._patience

    async def _once(self, body: bytes, record: Record) -> str:
        reading = Reading()
        try:
            async with self._http.session.post(self._url, data=body) as response:
                record.status = response.status
                if response.status != 200:
                    _refused(record, response.headers, await response.read())
                    return ""
                now, feed = self._pace.now, reading.feed
                async for chunk in response.content.iter_any():
                    feed(now(), chunk)
        except TimeoutError:
            return _failed(record, "timeout", "no answer in time (--timeout)")
        except (ValueError, TypeError, AttributeError) as error:  # an event of another shape
            return _failed(record, "bad event", str(error))
        except (aiohttp.ClientError, OSError) as error:
            return _failed(record, "stream broken" if reading.last else "connection", str(error))
        _conclude(record, reading)
        return "".join(reading.texts)


def _wait(retry_after: float | None) -> float:
    return min(DEFAULT_WAIT if retry_after is None else retry_after, LONGEST_WAIT)


def _failed(record: Record, key: str, message: str) -> str:
    record.error, record.message = key, message
    return ""


def _refused(record: Record, headers: Mapping[str, str], data: bytes) -> None:
    detail = error_detail(json_object(data))
    record.error = f"{record.status} {detail.get('code') or detail.get('type') or ''}".strip()
    record.message = str(detail.get("message") or data[:200].decode(errors="replace"))
    record.retry_after = _retry_after(headers, detail)


def _retry_after(headers: Mapping[str, str], detail: dict[str, Any]) -> float | None:
    """Seconds: our exact milliseconds, else the header (its date form is not used by such servers)."""
    exact = detail.get("retry_after_ms")
    if isinstance(exact, (int, float)):
        return exact / 1000
    try:
        return float(headers["Retry-After"])
    except (KeyError, ValueError):
        return None


def _conclude(record: Record, reading: Reading) -> None:
    if reading.error is not None:
        kind = reading.error.get("code") or reading.error.get("type") or "error"
        _failed(record, f"stream {kind}", str(reading.error.get("message", "")))
        return
    if not reading.done and not reading.finish:
        _failed(record, "stream broken", "the stream ended without a finish reason or [DONE]")
        return
    record.finish, record.chunks = reading.finish, reading.chunks
    record.end = reading.finished if reading.finished is not None else reading.last
    record.first = reading.chunks[0] if reading.chunks else record.end
    _count(record, reading)
    queue = (reading.timings or {}).get("queue_ms")
    record.queue = None if queue is None else queue / 1000


def _count(record: Record, reading: Reading) -> None:
    if reading.usage is None:
        record.output_tokens, record.counted = len(reading.texts), "chunks"
        return
    usage = reading.usage
    record.output_tokens = int(usage.get("completion_tokens") or 0)
    record.prompt_tokens = usage.get("prompt_tokens")
    record.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
