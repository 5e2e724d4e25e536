"""What the HTTP side works with, handed in whole: no globals, so that a process may hold several apps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from os import urandom

from starlette.requests import Request

from tailrace.clock import Clock, SystemClock
from tailrace.config import Config
from tailrace.control.adapters import Adapters
from tailrace.control.durable_responses import DurableResponses
from tailrace.control.keys import Principal
from tailrace.control.models import Loaded, Models
from tailrace.control.pipeline import Pipeline
from tailrace.control.responses import MemoryResponses, ResponseStore
from tailrace.control.streams import Streams
from tailrace.database.keeping import Keeping
from tailrace.observe.ended import Watcher
from tailrace.observe.entry import About, entry
from tailrace.observe.metrics import Metrics
from tailrace.observe.record import Records
from tailrace.observe.timeline import Timeline
from tailrace.protocol.ask import Template
from tailrace.protocol.sampling import Limits
from tailrace.text.tokenizer import Tokenizer


@dataclass(slots=True)
class AppState:
    config: Config
    pipeline: Pipeline
    models: Models
    metrics: Metrics
    clock: Clock = field(default_factory=SystemClock)
    records: Records = field(default_factory=Records)
    keeping: Keeping = field(default_factory=lambda: Keeping(""))
    server: str = field(default_factory=lambda: urandom(6).hex())  # this instance, in records of its requests
    watchers: tuple[Watcher, ...] = ()  # told of each request's end
    adapters: Adapters = field(init=False)
    started: float = field(init=False)  # seconds since the epoch
    responses: ResponseStore = field(init=False)
    streams: Streams = field(init=False)
    _known: dict[str, tuple[Loaded | None, Limits]] = field(default_factory=dict, init=False)  # by model

    def __post_init__(self) -> None:
        self.started = self.clock.wall()
        self.responses = self._responses()
        api = self.config.api
        self.streams = Streams(self.clock, most=api.stream_memory, grace=api.stream_grace)
        self.adapters = Adapters(self.models, self.config.api.lora_folder)

    def _responses(self) -> ResponseStore:
        most = self.config.api.response_memory
        if not self.keeping.wanted:
            return MemoryResponses(most)
        retention = self.config.data.response_retention
        return DurableResponses(self.keeping, self.clock, most=most, retention=retention)

    async def close(self) -> None:
        """When every request has ended, and before what is kept is closed."""
        await self.responses.close()

    def ended(self, about: About, timeline: Timeline) -> None:
        """Account for a request whose timeline has closed."""
        self.metrics.closed(timeline, about.route)
        self.records.add(entry(about, timeline, server=self.server, ended=self.clock.wall()))

    def limits_of(self, principal: Principal, name: str, model: Loaded | None) -> Limits:
        """What requests for the model of this name are checked against: its own and the server's bounds, narrowed to
        what this tenant and key may. Without a model, those that hold for any."""
        known = self._known.get(name)
        if known is None or known[0] is not model:
            known = self._known[name] = model, self._limits(name, model)
        limits = known[1]
        tenant, key = self.pipeline.tenants[principal.tenant], self.pipeline.tenants.key_limits(principal)
        contexts = [limits.max_context, tenant.limits.max_context, key.max_context]
        outputs = [n for n in (tenant.limits.max_output, key.max_output) if n]
        if not (outputs or any(contexts[1:])):
            return limits
        return replace(limits, max_context=min(n for n in contexts if n), max_output=min(outputs, default=0))

    def _limits(self, name: str, model: Loaded | None) -> Limits:
        api, caps = self.config.api, None if model is None else model.backend.caps
        return Limits(
            models=(name,),
            max_context=_ANY if caps is None else caps.max_context,
            vocab_size=_ANY if caps is None or model is None else min(caps.vocab_size, model.tokenizer.vocab_size),
            max_choices=api.max_choices if caps is None else min(api.max_choices, caps.max_sequences),
            max_logprobs=api.max_logprobs,
            max_stop_strings=api.max_stop_strings,
            max_prompts=api.max_prompts,
        )

    @asynccontextmanager
    async def using(
        self, name: str | None, principal: Principal, timeline: Timeline
    ) -> AsyncIterator[tuple[Loaded, Limits]]:
        """The model of that name, loaded if it was not, and what bounds requests for it. Raises ModelNotFound,
        Unavailable."""
        served = self.models.find(name, principal.tenant)
        model = await self.models.hold(served, timeline)
        try:
            yield model, self.limits_of(principal, served.name, model)
        finally:
            self.models.let_go(served)


def one_model(
    pipeline: Pipeline, tokenizer: Tokenizer, template: Template | None, config: Config, clock: Clock
) -> Models:
    """For a server whose only model is there already: the one that `pipeline` serves."""
    backend = pipeline.backend
    models = Models(backend.caps.models, None, pipeline, clock)
    for name in backend.caps.models:
        models.adopt(name, Loaded.of(backend, tokenizer, template, config.engine))
    return models


def state_of(request: Request) -> AppState:
    state: AppState = request.scope["state"]["tailrace"]
    return state


_ANY = 1 << 30  # a bound that no request reaches
