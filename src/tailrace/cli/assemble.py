"""Puts the parts together: model file -> engine -> backend -> pipeline -> HTTP state. The only place that knows all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tailrace.backends.engine import EngineBackend
from tailrace.cli.models import find_model
from tailrace.cli.output import fraction_bars
from tailrace.clock import SystemClock
from tailrace.config import EngineConfig, store_root
from tailrace.engine.build import build_engine
from tailrace.engine.parts import EngineParts
from tailrace.engine.weights.load import LoadedModel
from tailrace.text.template import ChatTemplate
from tailrace.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
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
    def loaded(self) -> LoadedModel:
        assert self.parts.loaded is not None
        return self.parts.loaded


def ready_model(config: EngineConfig) -> Model:
    """Find (or fetch) the file and set the engine up around it. Raises StoreError, ModelFileError, ConfigError."""
    path = find_model(config)
    clock = SystemClock()
    with fraction_bars() as progress:
        parts = build_engine(path, config, clock, cache_dir=store_root(config), progress=progress)
    name = served_name(config, path)
    assert parts.loaded is not None
    template = _template(config, parts.loaded, clock)
    return Model(name, path, parts, EngineBackend(parts, name, clock), template, clock)


def served_name(config: EngineConfig, path: Path) -> str:
    """What clients call the model: as configured, a store name as it is, a file by its name without the ending."""
    if config.served_name:
        return config.served_name
    return path.name.removesuffix(".gguf") if Path(config.model).expanduser().is_file() else config.model


def _template(config: EngineConfig, loaded: LoadedModel, clock: SystemClock) -> ChatTemplate | None:
    if config.chat_template:
        return ChatTemplate.from_file(Path(config.chat_template).expanduser(), loaded.metadata, clock=clock)
    return ChatTemplate.from_metadata(loaded.metadata, clock=clock)
