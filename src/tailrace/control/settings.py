"""What the server is configured with at this moment: what it read, and what an operator has laid over it.

A change is checked whole before anything of it holds, and then holds whole, from the next decision on: no request is
dropped. Settings that only a restart can change are named and stay as they were.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tailrace.config import Config, Loaded, taken_over, warnings
from tailrace.control.models import Models
from tailrace.control.pipeline import Pipeline
from tailrace.errors import ConfigError
from tailrace.frozen import frozen

log = logging.getLogger(__name__)


@frozen
class Reloaded:
    """Names of settings and tables: what holds now, and what would need a restart."""

    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]


class Settings:
    """`loaded`: as it was last read."""

    def __init__(self, loaded: Loaded, pipeline: Pipeline, models: Models) -> None:
        self.loaded = loaded
        self.config = loaded.config
        self._pipeline = pipeline
        self._models = models
        self._told: list[Callable[[Config], None]] = []

    def on_change(self, told: Callable[[Config], None]) -> None:
        """`told` gets every configuration that holds from then on, in the middle of the change: it must not fail."""
        self._told.append(told)

    def reload(self) -> Reloaded:
        """Read the same sources again. Raises ConfigError, and nothing has changed."""
        if self.loaded.again is None:
            raise ConfigError("this server was not started from settings that can be read again")
        fresh = self.loaded.again()
        config, changed, left = taken_over(self.config, fresh.config)
        self._hold(config)
        self.loaded = fresh
        for text in warnings(config):
            log.warning("%s", text)
        if left:
            log.warning("these settings need a restart: %s", ", ".join(left))
        return Reloaded(tuple(changed), tuple(left))

    def _hold(self, config: Config) -> None:
        self.config = config
        self._models.keep_alive = config.engine.keep_alive
        self._pipeline.configure(config)
        for told in self._told:
            told(config)
