"""Where the plane's processor time of a request goes: timers put around its functions, requests one after another
through the whole application over the fake backend, without sockets. A stage's time is its own: what it calls and is a
stage too counts there. Of each request's times the 10 % quantile is told, which is what they take undisturbed.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator
from functools import wraps
from typing import Any

import orjson
from benchmarks.serving.live import quantile

from tailrace.api import edge, exchange, sse, table
from tailrace.api.app import create_app
from tailrace.api.state import AppState
from tailrace.api.wire import LEAVERS
from tailrace.backends.fake import FakeBackend
from tailrace.control.answering import answering
from tailrace.control.dispatch import Dispatch
from tailrace.control.foresight import Foresight
from tailrace.control.intake import Intake
from tailrace.control.own_limits import OwnLimits
from tailrace.control.pipeline import Pipeline
from tailrace.control.run import Run
from tailrace.observe.metrics import Metrics
from tailrace.observe.record import Records
from tailrace.protocol.answer import ChatAnswer
from tailrace.protocol.chat import ChatRequest
from tailrace.text.template import ChatTemplate
from tailrace.text.tokenizer import Tokenizer

STAGES: tuple[tuple[str, object, str], ...] = (
    ("edge: id, timeline, headers, errors", edge.Edge, "__call__"),
    ("route and key", table.Endpoint, "__call__"),
    ("exchange: body, connection, stream", exchange.Exchange, "__call__"),
    ("exchange: body, connection, stream", exchange.Exchange, "__init__"),
    ("JSON and validation", answering.Answering, "read"),
    ("the door", Pipeline, "look"),
    ("the door", Pipeline, "door"),
    ("request checked and built", ChatRequest, "ask"),
    ("template", ChatTemplate, "render"),
    ("tokenizer", Tokenizer, "encode_rendered"),
    ("class, estimate, ticket", Intake, "prepare"),
    ("prediction", Foresight, "predict"),
    ("limits", OwnLimits, "reserve"),
    ("admission and queue", Pipeline, "admit"),
    ("dispatch", Dispatch, "release"),
    ("events of the run", Run, "__anext__"),
    ("fake backend", FakeBackend, "load"),
    ("fake backend", FakeBackend, "outlook"),
    ("fake backend", FakeBackend, "_advance"),
    ("fake backend", FakeBackend, "_choice"),
    ("fake backend", FakeBackend, "_start_waiting"),
    ("chunks", ChatAnswer, "chunk"),
    ("chunks", ChatAnswer, "end"),
    ("chunks", ChatAnswer, "__init__"),
    ("stream: sending", sse.EventStream, "open"),
    ("stream: sending", sse.EventStream, "write"),
    ("end: settle, learn, next", Pipeline, "leave"),
    ("end: metrics", Metrics, "closed"),
    ("end: record", Records, "add"),
)
BODY = orjson.dumps({"messages": [{"role": "user", "content": "Ping 1"}], "max_tokens": 4, "stream": True})


class Timers:
    """Nanoseconds of each stage's own, of the request under way. One request at a time, in one thread."""

    def __init__(self) -> None:
        self.own: defaultdict[str, int] = defaultdict(int)
        self._inside: list[str] = []
        self._since = 0

    def enter(self, stage: str) -> None:
        self._note()
        self._inside.append(stage)

    def leave(self) -> None:
        self._note()
        self._inside.pop()

    def _note(self) -> None:
        now = time.perf_counter_ns()
        if self._inside:
            self.own[self._inside[-1]] += now - self._since
        self._since = now

    def take(self) -> dict[str, int]:
        taken, self.own = dict(self.own), defaultdict(int)
        return taken


class _Timed:
    """A coroutine whose every step counts."""

    def __init__(self, timers: Timers, stage: str, inner: Awaitable[Any]) -> None:
        self._timers, self._stage, self._inner = timers, stage, inner

    def __await__(self) -> Generator[Any, Any, Any]:
        steps, value, raised = self._inner.__await__(), None, None
        while True:
            self._timers.enter(self._stage)
            try:
                asked = steps.send(value) if raised is None else steps.throw(raised)
            except StopIteration as end:
                return end.value
            finally:
                self._timers.leave()
            value = raised = None
            try:
                value = yield asked
            except BaseException as error:  # thrown in from outside: handed on
                raised = error


def put_timers(timers: Timers) -> None:
    """Around the functions of STAGES, for the rest of this process."""
    for stage, owner, name in STAGES:
        setattr(owner, name, _around(timers, stage, getattr(owner, name)))


def _around(timers: Timers, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if asyncio.iscoroutinefunction(function):

        @wraps(function)
        async def timed_coroutine(*args: Any, **options: Any) -> Any:
            return await _Timed(timers, stage, function(*args, **options))

        return timed_coroutine

    @wraps(function)
    def timed(*args: Any, **options: Any) -> Any:
        timers.enter(stage)
        try:
            return function(*args, **options)
        finally:
            timers.leave()

    return timed


class Caller:
    """Sends one request after another into an application; knows when the first event of each came."""

    def __init__(self, app: Any, key: str) -> None:
        self._app = app
        length = str(len(BODY)).encode()
        self._headers = [
            (b"host", b"localhost"),
            (b"authorization", b"Bearer " + key.encode()),
            (b"content-length", length),
        ]

    async def one(self, first: Callable[[], None]) -> None:
        sent, done = False, asyncio.Event()

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": BODY, "more_body": False}
            await done.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if b"data: " in message.get("body", b""):
                first()
            if message["type"] == "http.response.body" and not message.get("more_body"):
                done.set()

        path = "/v1/chat/completions"
        scope = {
            "type": "http", "method": "POST", "scheme": "http", "path": path, "root_path": "", "query_string": b"",
            "headers": self._headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
            "state": {LEAVERS: set()},  # as our own connections have it
        }  # fmt: skip
        await self._app(scope, receive, send)


async def measure(state: AppState, key: str, requests: int = 1500) -> None:
    timers = Timers()
    put_timers(timers)
    caller = Caller(create_app(state), key)
    before: list[dict[str, int]] = []
    after: list[dict[str, int]] = []
    for number in range(requests + 50):
        parts: list[dict[str, int]] = []
        await caller.one(lambda parts=parts: parts.append(timers.take()))  # type: ignore[misc]
        if number >= 50:
            before.append(parts[0])
            after.append(_sum([*parts[1:], timers.take()]))
        timers.take()
    report(before, after)


def _sum(parts: list[dict[str, int]]) -> dict[str, int]:
    return {name: sum(part.get(name, 0) for part in parts) for name in {name for part in parts for name in part}}


def report(before: list[dict[str, int]], after: list[dict[str, int]]) -> None:
    print(f"{'microseconds of a request':38}{'to the first event':>20}{'after it':>12}")
    totals = [0.0, 0.0]
    for stage in dict.fromkeys(name for name, _, _ in STAGES):
        values = [quantile([part.get(stage, 0) for part in side], 0.1) / 1000 for side in (before, after)]
        totals = [total + value for total, value in zip(totals, values, strict=True)]
        print(f"{stage:38}{values[0]:20.0f}{values[1]:12.0f}")
    print(f"{'all':38}{totals[0]:20.0f}{totals[1]:12.0f}")
