"""Hunting races: a pytest plugin that makes one side of a test slow at random places.

    python -m pytest -p tests.delays --delay=test,engine [--delay-seed=N] [--delay-most=0.2] tests/...

Off unless asked for. A test that fails under it relied on how fast one thread, process or event loop is beside another;
one that only hits its own time limit may be innocent. The modes, which combine:

- test: the test's thread sleeps before random lines of the test files, so that everyone else is ahead of it
- loop: an event loop sleeps before random callbacks, and a thread that has just woken another one lets it go first
- engine: the engine's thread sleeps between steps
- threads: threads and executor jobs begin late, a thread that waited goes on late, and the interpreter switches threads
  very often in one test and rarely in the next
- processes: child processes are stopped and continued, more slowly than others do what they do

Delays are drawn from the seed and the test's name. Most last until the rest of the process has nothing left to do, some
a random time; they take at most about a second and half of a test's time, and more with a larger `--delay-most`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import thread as executor
from functools import wraps
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from tailrace.engine import loop as engine_loop

MODES = ("test", "loop", "engine", "threads", "processes")
TESTS = str(Path(__file__).resolve().parent) + os.sep
OFTEN, RARELY = 0.5, 0.05  # how likely a pause is, and one that waits for nobody
SLICES = 15  # of a child process' life in which it is stopped
_sleep, _now, _used = time.sleep, time.monotonic, time.process_time  # tests may put their own in place


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("delays", "delays at random places (tests/delays.py)")
    group.addoption("--delay", default="", help=f"comma-separated: {', '.join(MODES)}")
    group.addoption("--delay-seed", type=int, default=0, help="of the places and lengths")
    group.addoption("--delay-most", type=float, default=0.2, help="seconds of the longest delay")


def pytest_configure(config: pytest.Config) -> None:
    modes = [mode for mode in config.getoption("--delay").split(",") if mode]
    if unknown := set(modes) - set(MODES):
        raise pytest.UsageError(f"--delay: unknown {', '.join(sorted(unknown))}; known are {', '.join(MODES)}")
    if modes:
        plugin = Delays(modes, config.getoption("--delay-seed"), config.getoption("--delay-most"))
        config.pluginmanager.register(plugin, "tailrace-delays")


class Delays:
    def __init__(self, modes: list[str], seed: int, most: float) -> None:
        self._seed, self._most = seed, most
        self._modes = modes
        self._begin("")
        for mode in modes:
            getattr(self, f"_slow_{mode}")()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._begin(item.nodeid)
        if "test" in self._modes:
            sys.settrace(self._trace)
        try:
            return (yield)
        finally:
            if "test" in self._modes:
                sys.settrace(None)

    def _begin(self, name: str) -> None:
        self._random = random.Random(f"{self._seed} {name}")
        self._started, self._slept = _now(), 0.0
        self._visits: Counter[object] = Counter()
        if "threads" in self._modes:
            interval = self._random.choice([1e-6, 0.0005, 0.1])
            engine_loop.SWITCH_INTERVAL = interval
            sys.setswitchinterval(interval)

    def pause(self, place: object) -> None:
        """Sometimes until the others have nothing left to do, rarely for a while whatever they do.

        Less often the more often a test comes by the same place: what it repeats it mostly repeats to wait.
        """
        self._visits[place] += 1
        drawn = self._random.random() * (1 + self._visits[place] / 2)
        if drawn > OFTEN or self._slept > 10 * self._most + 0.5 * (_now() - self._started):
            return
        begin = _now()
        if drawn < RARELY:
            _sleep(self._most * self._random.uniform(0.05, 1.0))
        else:
            _until_quiet(self._most)
        self._slept += _now() - begin

    def _slow_test(self) -> None:
        """Lines are traced in pytest_runtest_protocol."""

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        return self._line if _of_tests(frame.f_code) else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            self.pause((frame.f_code, frame.f_lineno))
        return self._line

    def _slow_loop(self) -> None:
        run = asyncio.events.Handle._run

        def late(handle: asyncio.Handle) -> None:
            self.pause(_work(handle))
            run(handle)

        asyncio.events.Handle._run = late  # type: ignore[method-assign]
        self._after(threading.Event, "set")
        self._after(threading.Semaphore, "release")
        self._after(asyncio.BaseEventLoop, "call_soon_threadsafe")
        self._after(engine_loop.EngineLoop, "_put")

    def _slow_engine(self) -> None:
        self._before(engine_loop.EngineLoop, "turn")
        self._before(engine_loop.EngineLoop, "_hand_over")

    def _slow_threads(self) -> None:
        start = threading.Thread.start

        def late(thread: threading.Thread) -> None:
            if type(thread) is not Watcher:
                thread.run = self._late(thread.run)  # type: ignore[method-assign]
            start(thread)

        threading.Thread.start = late  # type: ignore[method-assign]
        self._before(executor._WorkItem, "run")
        self._after(threading.Condition, "wait")

    def _slow_processes(self) -> None:
        begin = subprocess.Popen.__init__

        @wraps(begin)
        def watched(process: subprocess.Popen[Any], *args: Any, **kwargs: Any) -> None:
            begin(process, *args, **kwargs)
            with contextlib.suppress(ProcessLookupError):
                Watcher(os.pidfd_open(process.pid), self._random.random(), self._most).start()

        subprocess.Popen.__init__ = watched  # type: ignore[method-assign]

    def _before(self, owner: Any, name: str) -> None:
        setattr(owner, name, self._late(getattr(owner, name)))

    def _after(self, owner: Any, name: str) -> None:
        plain = getattr(owner, name)

        @wraps(plain)
        def followed(*args: Any, **kwargs: Any) -> Any:
            result = plain(*args, **kwargs)
            self.pause(plain)
            return result

        setattr(owner, name, followed)

    def _late(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(plain)
        def late(*args: Any, **kwargs: Any) -> Any:
            self.pause(plain)
            return plain(*args, **kwargs)

        return late


def _work(handle: Any) -> object:
    """What tells a callback from others: for a step of a task, its coroutine."""
    called = handle._callback
    owner = getattr(called, "__self__", None)
    return getattr(owner.get_coro() if isinstance(owner, asyncio.Task) else called, "__qualname__", "")


def _until_quiet(most: float) -> None:
    """Sleep while the other threads of this process work."""
    end = _now() + most
    while _now() < end:
        before = _used()
        _sleep(0.003)
        if _used() - before < 0.0005:
            return


def _of_tests(code: CodeType) -> bool:
    return code.co_filename.startswith(TESTS) and code.co_filename != __file__


class Watcher(threading.Thread):
    """Stops a child and lets it go on, again and again while it begins its life, by a descriptor that is only its."""

    def __init__(self, process: int, seed: float, most: float) -> None:
        super().__init__(name="delays of a process", daemon=True)
        self._process, self._random, self._most = process, random.Random(seed), most

    def run(self) -> None:
        try:
            for _ in range(SLICES):
                self._tell(signal.SIGSTOP)
                _sleep(self._random.uniform(0.05, 1.0) * self._most)
                self._tell(signal.SIGCONT)
                _sleep(self._random.uniform(0.01, 0.5) * self._most)
        except ProcessLookupError:
            pass
        finally:
            os.close(self._process)

    def _tell(self, what: signal.Signals) -> None:
        signal.pidfd_send_signal(self._process, what)
