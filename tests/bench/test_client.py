"""One request against servers that refuse, break off and lie: always a record, never an exception."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from aiohttp import web

from tailrace.bench.client import Ask, Client, Shape
from tailrace.bench.http import Http
from tailrace.bench.pace import RealPace
from tailrace.bench.record import Record
from tailrace.clock import ManualClock
from tests.bench.servers import LINE, Odd, dropping, error, piece, serving

SHAPE = Shape("odd", chat=False)


class NoWaiting(RealPace):
    """Time passes only where something waits for it, at once."""

    def __init__(self) -> None:
        self.clock = ManualClock(now=1000.0)
        super().__init__(self.clock)
        self.waits: list[float] = []

    async def until(self, moment: float) -> None:
        self.waits.append(moment - self.now())
        self.clock.advance(self.waits[-1])


async def send(base: str, pace: NoWaiting | None = None, tokens: int = 3, **fields: Any) -> Record:
    async with Http(base, "", 120.0) as http:
        record, _ = await Client(http, SHAPE, pace or NoWaiting(), **fields).send(Ask("one two", tokens))
    return record


async def answered(*script: Any, **fields: Any) -> Record:
    async with serving(Odd(script=list(script))) as base:
        return await send(base, **fields)


async def test_an_answer() -> None:
    record = await answered()
    assert (record.ok, record.status, record.finish) == (True, 200, "length")
    assert (record.prompt_tokens, record.output_tokens, record.counted) == (2, 3, "usage")
    assert len(record.chunks) == 3
    assert record.sent <= record.first <= record.end  # type: ignore[operator]


async def test_the_request_carries_what_the_shape_says() -> None:
    odd = Odd()
    async with serving(odd) as base:
        await send(base)
    assert odd.bodies == [
        {
            "model": "odd", "prompt": "one two", "stream": True, "max_tokens": 3, "min_tokens": 3, "ignore_eos": True,
            "temperature": 0.0, "stream_options": {"include_usage": True},
        }
    ]  # fmt: skip


async def test_without_usage_pieces_are_counted_and_flagged() -> None:
    async with serving(Odd(usage=False)) as base:
        record = await send(base)
    assert (record.output_tokens, record.counted, record.prompt_tokens) == (3, "chunks", None)


def broken_off(body: Any) -> bytes:
    return LINE % orjson.dumps({"choices": [piece("w", False)]})


def failing_event(body: Any) -> bytes:
    return broken_off(body) + LINE % orjson.dumps({"error": {"code": "internal_error", "message": "it broke"}})


@pytest.mark.parametrize(
    ("script", "key", "message"),
    [
        (broken_off, "stream broken", "without a finish reason"),
        (failing_event, "stream internal_error", "it broke"),
        (lambda body: b"data: {oops\n\n", "bad event", ""),
        (lambda body: b'data: {"choices": [5]}\n\n', "bad event", ""),
        (lambda body: b"", "stream broken", ""),
        (lambda body: web.json_response({"choices": []}), "stream broken", ""),
        (lambda body: error(401, "invalid_api_key", "who?"), "401 invalid_api_key", "who?"),
        (lambda body: web.Response(status=502, text="<html>bad gateway"), "502", "bad gateway"),
        (lambda body: web.json_response({"detail": "not so"}, status=422), "422", "not so"),
    ],
)
async def test_failures_have_a_key_and_the_servers_words(script: Any, key: str, message: str) -> None:
    record = await answered(script)
    assert record.error == key
    assert message in record.message
    assert not record.ok


async def test_a_connection_that_breaks_inside_the_answer() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + broken_off(None)
    async with dropping(head) as base:
        assert (await send(base)).error == "stream broken"


async def test_nobody_there() -> None:
    async with dropping(b"") as base:
        assert (await send(base)).error == "connection"
    assert (await send(base)).error == "connection"


def busy(body: Any) -> web.Response:
    return error(429, "queue_full", "later", {"Retry-After": "2"}, retry_after_ms=1500)


async def test_a_refusal_is_counted_with_the_wait_it_names() -> None:
    record = await answered(busy)
    assert (record.error, record.retry_after, record.retries) == ("429 queue_full", 1.5, 0)
    record = await answered(lambda body: error(503, "draining", "no", {"Retry-After": "7"}))
    assert (record.error, record.retry_after) == ("503 draining", 7.0)


async def test_a_refusal_is_retried_after_the_wait_it_names() -> None:
    pace = NoWaiting()
    record = await answered(busy, busy, pace=pace, retry=True)
    assert (record.ok, record.retries, record.status) == (True, 2, 200)
    assert pace.waits == [1.5, 1.5]


async def test_retries_end_with_patience() -> None:
    record = await answered(*[busy] * 9, retry=True, patience=1.0)
    assert (record.error, record.retries) == ("429 queue_full", 0)


async def test_other_errors_are_not_retried() -> None:
    record = await answered(lambda body: error(400, "invalid_value", "no"), retry=True)
    assert (record.error, record.retries) == ("400 invalid_value", 0)
