"""What the HTTP side works with, handed in whole: no globals, so that a process may hold several apps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from os import urandom

from starlette.requests import Request

from tailrace.clock import Clock, SystemClock
from tailrace.config import Config
from tailrace.config import Loaded as ConfigLoaded
from tailrace.control.accounts.accounts import Accounts
from tailrace.control.adapters import Adapters
from tailrace.control.answering.limits import ModelLimits
from tailrace.control.answering.plane import Plane
from tailrace.control.deferred.book import Deferred
from tailrace.control.deferred.standing import KINDS
from tailrace.control.durable_responses import DurableResponses
from tailrace.control.jobs.batch import BATCH, Batches
from tailrace.control.jobs.kind import JobKind
from tailrace.control.jobs.runner import JobRunner
from tailrace.control.keys import Principal
from tailrace.control.later_metrics import LaterMetrics
from tailrace.control.models import Loaded, Models
from tailrace.control.pipeline import Pipeline
from tailrace.control.report.made import Reports
from tailrace.control.responses import MemoryResponses, ResponseStore
from tailrace.control.settings import Settings
from tailrace.control.streams import Streams
from tailrace.control.webhooks.deliveries import Deliveries
from tailrace.database.keeping import Keeping
from tailrace.observe.entry import About
from tailrace.observe.history import History
from tailrace.observe.ledger import Ledger
from tailrace.observe.metrics import Metrics
from tailrace.observe.record import Records
from tailrace.observe.spill import Spill
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
    trace_ratio: float | None = None  # part of the requests whose trace one of them sends; None: no traces at all
    spill: Spill | None = None  # where the ledger waits for its database
    loaded: ConfigLoaded | None = None  # where `config` comes from
    stop: Callable[[], None] | None = None  # what a signal does; set by whoever listens
    settings: Settings = field(init=False)
    accounts: Accounts = field(init=False)
    adapters: Adapters = field(init=False)
    ledger: Ledger = field(init=False)
    reports: Reports = field(init=False)
    history: History = field(init=False)
    started: float = field(init=False)  # seconds since the epoch
    responses: ResponseStore = field(init=False)
    streams: Streams = field(init=False)
    deliveries: Deliveries = field(init=False)
    deferred: Deferred = field(init=False)
    runner: JobRunner = field(init=False)
    plane: Plane = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.clock.wall()
        self.settings = Settings(self.loaded or ConfigLoaded.of(self.config), self.pipeline, self.models)
        data = self.config.data
        self.accounts = Accounts(self.settings, self.keeping, self.clock, self.server, retention=data.ledger_retention)
        self.responses = self._responses()
        api = self.config.api
        self.streams = Streams(self.clock, most=api.stream_memory, grace=api.stream_grace)
        limits = ModelLimits(api, self.pipeline.tenants)
        self.plane = Plane(
            self.pipeline, self.models, limits, self.responses, self.metrics, self.records, self.clock, self.server
        )
        self.adapters = Adapters(self.models, self.config.api.lora_folder)
        self.ledger = Ledger(self.keeping, self.clock, self.spill, retention=data.ledger_retention)
        self.metrics.show(self.ledger)
        self.reports = Reports(self.keeping)
        self.history = History(self.records, self.keeping, self.clock)
        self.deliveries = self._deliveries()
        self.deferred = self._deferred()
        batches = Batches(self.plane, self.keeping, most_bytes=api.max_body_bytes, retention=data.response_retention)
        kinds: dict[str, JobKind] = {BATCH: batches, **dict.fromkeys(KINDS, self.deferred)}
        self.runner = JobRunner(self.plane, self.keeping, kinds, self.ledger.add, most=self.config.control.job_lines)
        self.deferred.wake, self.deferred.stop = self.runner.wake, self.runner.stop
        self.metrics.show(LaterMetrics(self.runner, self.deliveries, self.streams, self.clock))
        self.settings.on_change(self._configure)

    def _configure(self, config: Config) -> None:
        self.config = config
        self.plane.limits.configure(config.api)

    def _responses(self) -> ResponseStore:
        most, retention = self.config.api.response_memory, self.config.data.response_retention
        made: MemoryResponses | DurableResponses = MemoryResponses(most)
        if self.keeping.wanted:
            made = DurableResponses(self.keeping, self.clock, most=most, retention=retention)
        self.metrics.show(made)
        return made

    def _deliveries(self) -> Deliveries:
        hosts, retention = self.config.api.webhook_hosts, self.config.data.response_retention
        return Deliveries(self.keeping, self.pipeline.tenants, hosts, self.clock, retention=retention)

    def _deferred(self) -> Deferred:
        most, retention = self.config.control.max_deferred, self.config.data.response_retention
        return Deferred(self.keeping, self.streams, self.deliveries, self.clock, most=most, retention=retention)

    async def close(self) -> None:
        """When every request has ended, and before what is kept is closed."""
        await self.runner.close()
        await self.deliveries.close()
        await self.accounts.close()
        await self.responses.close()
        await self.ledger.close()

    def ended(self, about: About, timeline: Timeline) -> None:
        """Account for a request whose timeline has closed."""
        self.ledger.add(self.plane.account(about, timeline))

    def limits_of(self, principal: Principal, name: str, model: Loaded | None) -> Limits:
        """What requests for the model of this name are checked against."""
        return self.plane.limits.of(principal, name, model)

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
