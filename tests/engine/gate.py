"""Holding an engine's thread, so that a test says how far it gets, however fast or slow one is beside the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition

from tailrace.engine.loop import EngineLoop
from tailrace.engine.step import StepPlan, StepResult


class Gate:
    """Open, until it is closed; then the engine takes only the steps that are let through."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._open, self._steps = True, 0
        self.aborts = 0  # commands to abort that the engine has been given

    def hold(self, engine: EngineLoop) -> None:
        """Stand in this engine's way from now on. It must be idle."""
        sample, tell = engine._runner.sample, engine.abort

        def held(plan: StepPlan) -> StepResult:
            self._pass()
            return sample(plan)

        def abort(request_id: str | None) -> None:
            tell(request_id)
            self.aborts += 1

        engine._runner.sample = held  # type: ignore[method-assign]
        engine.abort = abort  # type: ignore[method-assign]

    @contextmanager
    def closed(self) -> Iterator[None]:
        self._swing(open=False)
        try:
            yield
        finally:
            self._swing(open=True)

    def let(self, steps: int) -> None:
        with self._changed:
            self._steps += steps
            self._changed.notify()

    def _pass(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._open or self._steps)
            self._steps -= not self._open

    def _swing(self, *, open: bool) -> None:
        with self._changed:
            self._open, self._steps = open, 0
            self._changed.notify()
