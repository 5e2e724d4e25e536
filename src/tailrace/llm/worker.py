"""An asyncio loop in a thread, for callers that have none or that must not be disturbed in theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from threading import Event, Thread
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for any thread, one after another or several at once."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="tailrace-llm", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result or its error. An exception of the caller's own (Ctrl-C) ends the work before it goes on."""
        call = _Call(work)
        try:
            self._loop.call_soon_threadsafe(call.start)
            call.ended.wait()
        except BaseException:
            self._loop.call_soon_threadsafe(call.cancel)
            call.ended.wait()
            raise
        return call.result()

    def close(self) -> None:
        """When nothing runs any more."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class _Call(Generic[T]):
    """`start` and `cancel` run on the loop, in the order they were asked for; Ctrl-C may come before the first."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self.ended = Event()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work)
        self._task.add_done_callback(lambda _: self.ended.set())

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            return
        self._work.close()
        self.ended.set()

    def result(self) -> T:
        assert self._task is not None
        return self._task.result()
