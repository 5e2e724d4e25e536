"""`tailrace serve`: from settings to a listening server, and what is worth knowing about it on the way."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from socket import socket
from threading import Thread

import uvloop

from tailrace.api.listener import bound
from tailrace.cli.observers import Observers
from tailrace.cli.output import bold, show_warning
from tailrace.clock import SystemClock
from tailrace.config import Config, Loaded, data_root, database_of, store_root, warnings
from tailrace.database.address import check_address
from tailrace.engine.loop import SWITCH_INTERVAL
from tailrace.engine.nodes import engine_ranks, ranks_text
from tailrace.llm.fleet import Fleet
from tailrace.llm.ready import Model
from tailrace.observe.logs.logs import logging_to
from tailrace.observe.otel.collector import Collector
from tailrace.units import human_bytes

log = logging.getLogger(__name__)


def run_server(loaded: Loaded) -> bool:
    """Serve until SIGTERM or SIGINT; False when it ended because an engine was given up. Raises the typed errors of
    settings, store and model files."""
    begin = time.monotonic()
    config = loaded.config
    collector, database = Collector.of(config.observe), database_of(config.data)
    if database:
        check_address(database)
    listener = bound(config.api.host, config.api.port)
    with closing(listener), logging_to(sys.stderr.buffer, config) as logs:
        for text in warnings(config):
            _warn(config, text)
        return _load_and_serve(loaded, listener, Observers(logs, collector), begin)


def _warn(config: Config, text: str) -> None:
    """Among lines for machines as one of them."""
    if config.observe.log_format == "text":
        show_warning(text)
    else:
        log.warning(text)


def _load_and_serve(loaded: Loaded, listener: socket, observers: Observers, begin: float) -> bool:
    clock, config = SystemClock(), loaded.config
    with importing("tailrace.api.server"):
        fleet = Fleet(config.engine, clock)
        model = fleet.ready(fleet.names[0], show=config.observe.log_format == "text")
    if model.template is None and model.parts.generates:
        _warn(config, "the model has no chat template: chat routes answer 400; give one with --chat-template FILE")
    print_model(model, config)
    gc.freeze()  # what start-up made lives as long as the process: later collections need not look at it
    gc.enable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(Start(fleet, model, listener, observers, begin), loaded, clock))


@dataclass(frozen=True, slots=True)
class Start:
    """What a server begins with: its models, of which one is ready, and the socket, since `begin`."""

    fleet: Fleet
    model: Model
    listener: socket
    observers: Observers
    begin: float


@contextmanager
def importing(module: str) -> Iterator[None]:
    """Import a module beside what runs here, which is native for the most part. A failure shows where it is used."""

    def load() -> None:
        with suppress(Exception):
            import_module(module)

    thread = Thread(target=load, name=f"import {module}")
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)  # native parts come back for the interpreter hundreds of times
    thread.start()
    try:
        yield
    finally:
        thread.join()
        sys.setswitchinterval(before)


async def _serve(start: Start, loaded: Loaded, clock: SystemClock) -> bool:
    from tailrace.api.server import serve
    from tailrace.api.state import AppState
    from tailrace.control.jobs.instance import Instance
    from tailrace.control.lengths import LengthBook
    from tailrace.control.limits.store import limit_store
    from tailrace.control.models import Models
    from tailrace.control.pipeline import Pipeline
    from tailrace.control.tenants import Tenants
    from tailrace.database.keeping import Keeping
    from tailrace.observe.metrics import Metrics
    from tailrace.observe.spill import Spill

    config, metrics, fleet, model = loaded.config, Metrics(), start.fleet, start.model
    engine = config.engine
    tenants, keeping = Tenants.of(config), Keeping(database_of(config.data))
    store = limit_store(config.control, clock, keeping)
    lengths = LengthBook(store_root(engine) / "control" / "lengths.json")
    pipeline = Pipeline(None, config.control, clock, metrics, tenants=tenants, store=store, lengths=lengths)
    models = Models(fleet.names, fleet, pipeline, clock, keep_alive=engine.keep_alive, memory=engine.models_memory)
    models.adopt(model.name, fleet.started(model))
    instance = Instance(data_root(config.data) if keeping.wanted else None)

    def on_listening(url: str) -> None:
        print_ready(url, model, not tenants.open, time.monotonic() - start.begin)
        keeping.start()
        state.ledger.start()
        state.runner.start()
        state.deliveries.start()
        state.accounts.start()

    try:
        spill = Spill(data_root(config.data), config.data.ledger_spill)
        name = instance.name
        state = AppState(
            config, pipeline, models, metrics, clock, keeping=keeping, spill=spill, loaded=loaded, server=name
        )
        state.adapters.at_start(config.api.loras)
        start.observers.watch(state)
        well = await serve(state, listener=start.listener, on_listening=on_listening)
        await pipeline.close()
        await state.close()
        return well
    finally:
        await asyncio.to_thread(start.observers.close)
        await keeping.close()
        instance.close()
        models.close()


def print_model(model: Model, config: Config) -> None:
    """What was found out at start."""
    loaded, parts = model.loaded, model.parts
    sizes = ", ".join(f"{name} {human_bytes(size)}" for name, size in loaded.bytes_by_format.items())
    kept = "packed weights from the store" if loaded.from_cache else "packed now, kept in the store"
    budget = parts.scheduler.budget
    alone, beside = budget.chunk_tokens(0, 0), budget.chunk_tokens(1, 256)
    facts = {
        "model": f"{model.name} ({model.path})",
        "kernels": f"{loaded.variant}, {ranks_text(engine_ranks(config.engine.threads, config.engine.ranks))}",
        "weights": f"{sizes} ({kept})",
        "context": f"{parts.scheduler.limits.max_context:,} tokens, {config.engine.max_sequences} sequences at once",
        "memory": str(parts.capacity),
        "prefill": f"chunks of up to {alone} tokens, {beside} beside decoding",
    }
    for name, text in facts.items():
        print(bold(f"{name:8}"), text, flush=True)


def print_ready(url: str, model: Model, key: bool, seconds: float) -> None:
    print(f"{bold('ready')} after {seconds:.1f} s at {bold(url)}\n")
    line = example(url, model.name, model.template is not None, key, generates=model.parts.generates)
    print(line, flush=True)


def example(url: str, name: str, chat: bool, key: bool, *, generates: bool = True) -> str:
    """A curl line that works as it is (with a key of the caller's, where one is needed)."""
    path, asked = "completions", dict[str, object](prompt="Once", max_tokens=64)
    if chat:
        path, asked = "chat/completions", {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 64}
    elif not generates:
        path, asked = "embeddings", {"input": "Hello!"}
    bearer = " -H 'Authorization: Bearer YOUR_KEY'" if key else ""
    body = json.dumps({"model": name, **asked}).replace("'", "'\\''")
    return f"curl {url}/v1/{path}{bearer} -H 'Content-Type: application/json' -d '{body}'"
