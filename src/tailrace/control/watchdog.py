"""Whether the engines go on. One that does not is restarted; one that keeps failing is given up, and the process ends.

Time counts only while this looks, a little for each look: a process that stood still (stopped, frozen, its machine
asleep), or whose event loop did, has waited for nothing. A step that is expected to take long may.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tailrace.backends.base import Backend
from tailrace.clock import Clock
from tailrace.control.dispatch import Dispatch
from tailrace.errors import Domain, ErrorKind, Unavailable
from tailrace.frozen import frozen

if TYPE_CHECKING:
    from tailrace.config import ControlConfig
    from tailrace.control.pipeline import Pipeline

log = logging.getLogger(__name__)

EVERY = 1.0  # seconds between looks
_MOST = 2.0  # seconds that one look adds
_STEPS = 30  # times what a step should take: many prompts in one, on a machine that others use too
_WINDOW = 600.0  # seconds in which restarts are counted
_KEPT = 16  # incidents
_AGAIN = 1.0  # seconds after which a failed request may be sent again


@frozen
class Incident:
    """An engine was restarted, or given up. `at`: seconds since the epoch; `requests`: that ran and were ended."""

    at: float
    model: str
    reason: str
    requests: int
    restarted: bool


@dataclass(slots=True)
class _Watched:
    beats: int = -1
    still: float = 0.0  # seconds without progress
    restarts: deque[float] = field(default_factory=deque)  # when
    task: asyncio.Task[None] | None = None
    failed: bool = False  # the last restart did not succeed


class Watchdog:
    """`start()` with a running loop, `stop()` in the end. `hopeless` is set when an engine was given up."""

    def __init__(self, pipeline: Pipeline, config: ControlConfig, clock: Clock) -> None:
        self.incidents: deque[Incident] = deque(maxlen=_KEPT)
        self.hopeless = asyncio.Event()
        self._pipeline = pipeline
        self.config = config
        self._clock = clock
        self._looked = clock.now()
        self._watched: dict[Backend, _Watched] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        tasks = [self._task, *(watched.task for watched in self._watched.values())]
        for task in tasks:
            if task is not None:
                task.cancel()
        await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)

    def report(self) -> list[dict[str, Any]]:
        """For people, the latest last."""
        return [asdict(incident) for incident in self.incidents]

    def look(self) -> None:
        """At every engine, once."""
        now = self._clock.now()
        passed, self._looked = min(now - self._looked, _MOST), now
        lanes = list(self._pipeline.lanes)
        self._watched = {lane.backend: self._watched.get(lane.backend) or _Watched() for lane in lanes}
        for lane in lanes:
            watched = self._watched[lane.backend]
            if watched.task is None and (reason := self._trouble(lane.backend, watched, passed)):
                self._act(lane, watched, reason)

    async def settled(self) -> None:
        """When no restart is under way."""
        await asyncio.gather(*(each.task for each in self._watched.values() if each.task is not None))

    def _trouble(self, backend: Backend, watched: _Watched, passed: float) -> str:
        pulse = backend.pulse()
        if watched.failed:
            return "restart_failed"
        if pulse.fault:
            return pulse.fault
        if not pulse.busy or pulse.beats != watched.beats:
            watched.beats, watched.still = pulse.beats, 0.0
            return ""
        watched.still += passed
        longest = max(self.config.stall_timeout, _STEPS * pulse.expected)
        return "stalled" if self.config.stall_timeout and watched.still > longest else ""

    def _act(self, lane: Dispatch, watched: _Watched, reason: str) -> None:
        now = self._clock.now()
        while watched.restarts and watched.restarts[0] < now - _WINDOW:
            watched.restarts.popleft()
        hopeless = len(watched.restarts) >= self.config.max_restarts
        name = ", ".join(lane.backend.caps.models)
        self.incidents.append(Incident(self._clock.wall(), name, reason, len(lane.running), not hopeless))
        log.critical(
            "the engine of %s does not go on (%s, %.0f s without progress): its %d requests end, and it is %s",
            name, reason, watched.still, len(lane.running), "given up" if hopeless else "restarted",
        )  # fmt: skip
        error = Unavailable(
            "The engine did not go on: send the request again", code="engine_stalled",
            retry_after=_AGAIN, domain=Domain.EXECUTION, kind=ErrorKind.TIMEOUT,
        )  # fmt: skip
        watched.restarts.append(now)
        if hopeless:
            self._give_up(lane, error)
            return
        self._pipeline.metrics.restarted(reason)
        watched.task = asyncio.create_task(self._restart(lane.backend, watched, error))

    def _give_up(self, lane: Dispatch, error: Unavailable) -> None:
        """Nothing will ever run there; whoever supervises the process starts another."""
        for run in [*lane.queue, *lane.running.values()]:
            run.fail(error)
        self.hopeless.set()

    async def _restart(self, backend: Backend, watched: _Watched, error: Unavailable) -> None:
        watched.failed = True
        try:
            await backend.restart(error)
            watched.failed = False
            log.warning("the engine of %s works again", ", ".join(backend.caps.models))
        except Exception:
            log.exception("the engine of %s could not be restarted", ", ".join(backend.caps.models))
        finally:
            watched.beats, watched.still, watched.task = -1, 0.0, None

    async def _run(self) -> None:
        while not self.hopeless.is_set():
            await asyncio.sleep(EVERY)
            self.look()
