"""From settings to a model that is ready to run: find or fetch the file, build the engine around it, its backend, its
chat template. What `serve`, `chat` and the Python API begin with."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.backends.engine import EngineBackend
from tailrace.clock import SystemClock, WorkClock
from tailrace.config import EngineConfig, store_root
from tailrace.engine.build import build_engine
from tailrace.engine.parts import EngineParts
from tailrace.engine.store.store import Store
from tailrace.engine.turns import Beside
from tailrace.engine.weights.load import LoadedModel
from tailrace.errors import StoreError
from tailrace.frozen import frozen
from tailrace.terminal import byte_bars, fraction_bars
from tailrace.text.template import ChatTemplate
from tailrace.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tailrace._native import Team


@frozen
class Model:
    """A model that is ready to run. `backend` is not started yet; whoever starts it closes it."""

    name: str
    path: Path
    parts: EngineParts
    backend: EngineBackend
    template: ChatTemplate | None
    clock: SystemClock

    @property
    def tokenizer(self) -> Tokenizer:
        return self.parts.tokenizer

    @property
    def team(self) -> Team:
        return self.loaded.team

    @property
    def nbytes(self) -> int:
        """Memory of weights and KV cache."""
        capacity = self.parts.capacity
        kv = 0 if capacity is None else capacity.blocks * capacity.block_bytes
        return kv + sum(self.loaded.bytes_by_format.values())

    @property
    def loaded(self) -> LoadedModel:
        assert self.parts.loaded is not None
        return self.parts.loaded


def ready_model(config: EngineConfig, *, show: bool = True, name: str = "", beside: Beside | None = None) -> Model:
    """Find (or fetch) the file and set the engine up around it. `show` False: without a word on stderr. `name`: what
    clients call it, where that is known; `beside`: the process' other engines.

    Raises StoreError, ModelFileError, ConfigError.
    """
    path = find_model(config, show=show)
    draft = find_model(replace(config, model=config.draft_model), show=show) if config.draft_model else None
    clock = SystemClock()
    with fraction_bars(show) as progress:
        parts = build_engine(
            path, config, clock, draft=draft, cache_dir=store_root(config), progress=progress, beside=beside
        )
    name = name or served_name(config, path)
    assert parts.loaded is not None
    template = _template(config, parts.loaded, clock)
    return Model(name, path, parts, EngineBackend(parts, name, clock), template, clock)


def find_model(config: EngineConfig, *, show: bool = True) -> Path:
    """The file of the configured model, fetched first when the store does not have it yet. Raises StoreError."""
    store = Store(store_root(config))
    try:
        return store.resolve(config.model)
    except StoreError as error:
        if error.code != "not_pulled":
            raise
    if show:
        print(f"{config.model} is not in the store yet; fetching it", file=sys.stderr)
    with byte_bars(show) as report:
        return store.pull(config.model, report)


def served_name(config: EngineConfig, path: Path) -> str:
    """What clients call the model: as configured, a store name as it is, a file by its name without the ending."""
    if config.served_name:
        return config.served_name
    given = Path(config.model).expanduser()
    return given.absolute().name.removesuffix(".gguf") if given.exists() else config.model


def _template(config: EngineConfig, loaded: LoadedModel, clock: SystemClock) -> ChatTemplate | None:
    work = WorkClock(clock)
    if config.chat_template:
        return ChatTemplate.from_file(Path(config.chat_template).expanduser(), loaded.metadata, clock=work)
    return ChatTemplate.from_metadata(loaded.metadata, clock=work)
