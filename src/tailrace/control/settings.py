"""What the server is configured with at this moment: what it read, and what an operator has laid over it.

A change is checked whole before anything of it holds, and then holds whole, from the next decision on: no request is
dropped. Settings that only a restart can change are named and stay as they were.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

from tailrace.config import Config, Loaded, taken_over, warnings
from tailrace.control.accounts.overlay import laid_over
from tailrace.control.explained import Row, rows
from tailrace.control.models import Models
from tailrace.control.pipeline import Pipeline
from tailrace.database.account import Overlay
from tailrace.errors import ConfigError
from tailrace.frozen import frozen
from tailrace.policy import Policy

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
        self.config = self._read = loaded.config  # `_read`: without what an operator laid over it
        self.overlay = Overlay()
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
        config, changed, left = taken_over(self._read, fresh.config)
        self._hold(config)
        self.loaded = fresh
        for text in warnings(config):
            log.warning("%s", text)
        if left:
            log.warning("these settings need a restart: %s", ", ".join(left))
        return Reloaded(tuple(changed), tuple(left))

    def rows(self) -> Iterator[Row]:
        """Every setting that holds, and where it came from; tables as the file has them."""
        return rows(replace(self.loaded, config=self._read))

    @property
    def file(self) -> Policy:
        """Without what an operator laid over it."""
        return self._read.policy

    def lay_over(self, overlay: Overlay) -> None:
        """An operator's changes from now on, in the place of those before."""
        self.overlay = overlay
        if overlay.keys:
            self._pipeline.tenants.lock()
        self._hold(self._read)

    def complete(self, whole: bool) -> None:
        """Whether what an operator has laid over it is known."""
        self._pipeline.tenants.complete = whole

    def _hold(self, read: Config) -> None:
        self._read = read
        self.config = config = replace(read, policy=laid_over(read.policy, self.overlay))
        self._models.keep_alive = config.engine.keep_alive
        self._pipeline.configure(config)
        for told in self._told:
            told(config)
