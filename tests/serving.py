"""A serving plane around a fake backend, in process or on a real port, for tests of api and control."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from tailrace.api.app import create_app
from tailrace.api.server import Service
from tailrace.api.state import AppState, one_model
from tailrace.backends.base import Backend
from tailrace.backends.fake import FakeBackend, fake_tokenizer
from tailrace.clock import Clock, ManualClock, SystemClock
from tailrace.config import ApiConfig, Config, ControlConfig
from tailrace.control.limits.base import LimitStore
from tailrace.control.limits.store import limit_store
from tailrace.control.pipeline import Pipeline
from tailrace.control.tenants import Tenants
from tailrace.database.keeping import Keeping
from tailrace.observe.metrics import Metrics
from tailrace.observe.spill import Spill
from tailrace.policy import Policy
from tailrace.text.template import ChatTemplate
from tailrace.text.tokenizer import Tokenizer
from tests.tiny import CHATML

STRICT = (
    "{% for m in messages %}{% if m['role'] not in ('user', 'assistant', 'system') %}"
    "{{ raise_exception('no place for ' + m['role']) }}{% endif %}"
    "{% if loop.index0 % 2 == 1 and m['role'] == 'user' %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ m['content'] }}{% endfor %}"
)


def template(source: str = CHATML) -> ChatTemplate:
    return ChatTemplate(source, clock=ManualClock())


def make_state(
    backend: Backend | None = None,
    *,
    api: dict[str, Any] | None = None,
    control: dict[str, Any] | None = None,
    policy: Policy | None = None,
    store: LimitStore | None = None,
    chat: ChatTemplate | None = None,
    tokens: Tokenizer | None = None,
    clock: Clock | None = None,
    database: str = "",
    patience: float = 120,
    spill: Spill | None = None,
) -> AppState:
    """Must be called with a running loop. `chat` defaults to ChatML, `tokens` to the fake's tokenizer; nothing is kept
    without a `database`, which is opened by `state.keeping.start()`, waited for `patience` seconds by who needs it, and
    closed by `state.keeping.close()`."""
    clock = clock or SystemClock()
    config = Config(api=replace(ApiConfig(), port=0, **(api or {})), control=ControlConfig(**(control or {})))
    config = replace(config, policy=policy or Policy())
    metrics = Metrics()
    keeping = Keeping(database, patience=patience)
    store = store or limit_store(config.control, clock, keeping)
    pipeline = Pipeline(
        backend or FakeBackend(), config.control, clock, metrics, tenants=Tenants.of(config), store=store
    )
    models = one_model(pipeline, tokens or fake_tokenizer(), chat or template(), config, clock)
    return AppState(config, pipeline, models, metrics, clock, keeping=keeping, spill=spill)


def in_process(state: AppState) -> httpx.AsyncClient:
    """A client without sockets. A streamed answer arrives whole."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(create_app(state)), base_url="http://test")


def patient(**options: Any) -> httpx.AsyncClient:
    """A client for real sockets whose time limit only ends what hangs; httpx's own is five seconds."""
    return httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=None), **options)


@asynccontextmanager
async def live(state: AppState) -> AsyncIterator[str]:
    """The address of a real server in this loop; it is stopped at the end, at once if something still runs."""
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    service = Service(state)
    task = asyncio.create_task(service.run(on_listening=address.set_result, signals=False))
    try:
        yield await address
    finally:
        service.stop()
        service.stop()
        await task


@dataclass
class Streamed:
    """The parts of a server-sent event stream."""

    events: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False
    comments: int = 0

    def text(self, index: int = 0) -> str:
        pieces = []
        for choice in self.choices(index):
            pieces.append(choice["text"] if "text" in choice else choice["delta"].get("content") or "")
        return "".join(pieces)

    def choices(self, index: int) -> list[dict[str, Any]]:
        return [c for event in self.events for c in event.get("choices", []) if c["index"] == index]

    def finish(self, index: int = 0) -> list[str]:
        return [c["finish_reason"] for c in self.choices(index) if c["finish_reason"]]


def parse_stream(body: str) -> Streamed:
    streamed = Streamed()
    for block in body.split("\n\n"):
        if block.startswith(":"):
            streamed.comments += 1
        elif block == "data: [DONE]":
            assert not streamed.done
            streamed.done = True
        elif block:
            assert block.startswith("data: "), block
            assert not streamed.done, "nothing follows [DONE]"
            streamed.events.append(json.loads(block.removeprefix("data: ")))
    return streamed


def chat(text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": "fake", "messages": [{"role": "user", "content": text}], **fields}


def gauge(state: AppState, name: str) -> float:
    value = state.metrics.registry.get_sample_value(name)
    assert value is not None, name
    return value


async def until(condition: Any) -> None:
    """Let the loop turn until something holds. The limit only ends what hangs: a slow machine takes its time."""
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)
