"""The models of one server: found or fetched at its start, loaded when asked for, over one team of threads.

Settings that describe one model (its name, template, context, draft model) are the first's; the others have their own
from their files.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from tailrace.clock import SystemClock
from tailrace.config import EngineConfig
from tailrace.engine.basis import engine_team
from tailrace.engine.loop import SWITCH_INTERVAL
from tailrace.engine.lora.read import read_adapter
from tailrace.engine.turns import Arbiter, Beside
from tailrace.engine.weights.open import open_checkpoint
from tailrace.errors import ConfigError
from tailrace.llm.ready import Model, find_model, ready_model, served_name

if TYPE_CHECKING:
    from tailrace._native import Team
    from tailrace.control.models import Loaded


class Fleet:
    """A Loader. `first` is loaded by whoever makes a fleet, the others on demand."""

    def __init__(self, config: EngineConfig, clock: SystemClock) -> None:
        """Fetches what the store does not have. Raises StoreError, and ConfigError for two models of one name."""
        self._clock = clock
        self._arbiter = Arbiter()
        self._several = bool(config.more_models)
        self._configs: dict[str, EngineConfig] = {}
        self._paths: dict[str, Path] = {}
        self._config = config
        self._renewing = Lock()
        self._team: Team | None = None
        self._running = 0
        for each in _configs(config):
            path = find_model(each)
            name = served_name(each, path)
            if name in self._configs:
                raise ConfigError(f"two models have the name {name}: give one another --served-name", param="model")
            self._configs[name], self._paths[name] = each, path

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._configs)

    def need(self, name: str) -> int:
        """A byte for each weight (less where they stay 4 bits), and the KV cache that was asked for."""
        tensors = open_checkpoint(self._paths[name]).tensors.values()
        weights = sum(prod(info.shape) for info in tensors)
        return weights + self._configs[name].kv_memory

    def load(self, name: str, *, show: bool = False) -> Loaded:
        """See Loader."""
        return self.started(self.ready(name, show=show))

    def ready(self, name: str, *, show: bool = False) -> Model:
        """The model, not started yet."""
        beside = self._beside() if self._several else None
        model = ready_model(self._configs[name], show=show, name=name, beside=beside)
        self._team = self._team or model.team
        return model

    def started(self, model: Model) -> Loaded:
        from tailrace.control.models import Loaded  # noqa: PLC0415 - a server imports it while its model loads

        backend, config, found = model.backend, self._configs[model.name], model.loaded
        loaded = Loaded.of(
            backend,
            model.tokenizer,
            model.template,
            config,
            nbytes=model.nbytes,
            close=partial(self._close, backend.close),
            read_adapter=partial(read_adapter, spec=found.spec, model=found.model) if backend.caps.generates else None,
        )
        backend.start()
        self._running += 1
        return loaded

    def _beside(self) -> Beside:
        arbiter = self._arbiter
        return Beside(arbiter, self._team, len(self._configs), lambda: self._beside_anew(arbiter))

    def _beside_anew(self, hung: Arbiter) -> Beside:
        """One engine hangs in the team: all go over to another, the first to notice makes it. In any thread."""
        with self._renewing:
            if hung is self._arbiter:
                hung.give_up()
                self._arbiter, self._team = Arbiter(), engine_team(self._config)
            return self._beside()

    def _close(self, stop: Callable[[], None]) -> None:
        stop()
        self._running -= 1
        if self._running:  # each engine puts back what it found
            sys.setswitchinterval(SWITCH_INTERVAL)


def _configs(config: EngineConfig) -> list[EngineConfig]:
    plain = replace(
        config,
        served_name="",
        chat_template="",
        max_context=0,
        draft_model="",
        tool_parser="auto",
        reasoning_parser="auto",
    )
    return [config, *(replace(plain, model=name) for name in config.more_models)]
