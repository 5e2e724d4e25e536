"""An event loop on a manual clock: waiting takes no time, it only moves the clock. What runs on it cannot tell.

The order of everything depends on times and on the order of calls alone, so a run repeats exactly. Nothing from outside
can wake it: a loop that has nothing left to wait for is an error, not a hang.
"""

from __future__ import annotations

import asyncio
import contextvars
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tailrace.clock import ManualClock

T = TypeVar("T")


class _Jump(selectors.SelectSelector):
    """Instead of waiting for files: go to the next timer."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits, and for nothing that has a time")
        if timeout > 0:
            self._clock.advance(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: ManualClock) -> None:
        super().__init__(_Jump(clock))
        self._manual = clock

    def time(self) -> float:
        return self._manual.now()

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """There are no other threads, and nobody to wake."""
        return self.call_soon(callback, *args, context=context)


def run(clock: ManualClock, main: Coroutine[Any, Any, T]) -> T:
    """Run to the end of `main`; what still waits then is cancelled. A callback that fails ends it all."""
    failed: list[BaseException] = []

    async def guarded() -> T:
        task = asyncio.current_task()
        assert task is not None

        def fail(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            failed.append(context.get("exception") or RuntimeError(context["message"]))
            task.cancel()

        asyncio.get_running_loop().set_exception_handler(fail)
        return await main

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        try:
            return runner.run(guarded())
        except asyncio.CancelledError:
            raise failed[0] if failed else RuntimeError("cancelled") from None
