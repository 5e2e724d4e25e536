"""A process in which grammars are compiled first, because compiling may take forever and a thread cannot be stopped.

A few short patterns take minutes or gigabytes (`multipleOf: 999983`, thirty patterns at once). So each new grammar is
tried there on a vocabulary of single bytes, within limits of time and memory; what passes is as quick on the real one.
The process starts with the first grammar, is replaced when it had to be killed, and ends with its parent. There are a
few, so that one that takes its time holds up no other: further ones start only when they are needed.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Mapping
from math import ceil
from pathlib import Path
from queue import LifoQueue
from threading import RLock

from tailrace.errors import InternalError

MEMORY = 1 << 30  # bytes of address space
_START_SECONDS = 60.0
_PATIENCE = 10  # seconds of waiting for each of processor time: beside busy neighbours a fair grammar takes longer
_CHILD = Path(__file__).with_name("guard_child.py")


class Guards:
    """For as many threads at once as there are of them."""

    def __init__(self, count: int, limits: Mapping[str, int | bool], seconds: float) -> None:
        self._all = [Guard(limits, seconds) for _ in range(count)]
        self._idle: LifoQueue[Guard] = LifoQueue()  # the one used last has its process already
        for guard in self._all:
            self._idle.put(guard)

    def refusal(self, grammar: str) -> str | None:
        """See Guard. Waits while all are at work."""
        guard = self._idle.get()
        try:
            return guard.refusal(grammar)
        finally:
            self._idle.put(guard)

    def close(self) -> None:
        for guard in self._all:
            guard.close()


class Guard:
    """One grammar at a time; `close` from any thread ends what is being tried."""

    def __init__(self, limits: Mapping[str, int | bool], seconds: float) -> None:
        """`limits` are LLParserLimits'; a grammar may take `seconds` of processor time."""
        self._limits = dict(limits)
        self._seconds = seconds
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = RLock()  # held while the child's pipes are in use
        self._closed = False

    def refusal(self, grammar: str) -> str | None:
        """Why a grammar (in llguidance's own form) is not taken; None where it is."""
        if self._closed:
            raise InternalError("the process that tries grammars has ended")
        with self._lock:
            answer = self._ask(self._running(), grammar, self._seconds * _PATIENCE)
            if answer is None:
                self._end()
                return f"it takes more than {self._seconds:g} s or {MEMORY >> 20} MiB to compile; make it simpler"
        refusal = json.loads(answer)
        return None if refusal is None else str(refusal)

    def close(self) -> None:
        """For good."""
        self._closed = True
        child = self._child
        if child is not None:
            child.kill()
        with self._lock:
            self._end()

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.communicate()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self._end()
            limits = [str(MEMORY), str(ceil(self._seconds)), os.pathsep.join(sys.path)]
            self._child = subprocess.Popen(
                [sys.executable, "-I", str(_CHILD), *limits],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is the parent's to act on
            )
            if self._closed or self._ask(self._child, self._limits, _START_SECONDS) is None:
                self._end()
                raise InternalError("the process that tries grammars does not start")
        return self._child

    def _ask(self, child: subprocess.Popen[bytes], question: object, seconds: float) -> bytes | None:
        """The line it answers; None when it takes too long or the child ends."""
        assert child.stdin is not None
        try:
            child.stdin.write(json.dumps(question).encode() + b"\n")
            child.stdin.flush()
        except BrokenPipeError:
            return None
        return self._read(child, seconds)

    def _read(self, child: subprocess.Popen[bytes], seconds: float) -> bytes | None:
        assert child.stdout is not None
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                data = os.read(child.stdout.fileno(), 1 << 16) if selector.select(seconds) else b""
                if not data:
                    return None
                line += data
        return line
