"""Lines on their way to a stream: a bounded queue, and one thread that makes and writes them.

Whoever logs never waits for the stream, not even when nobody reads it: what finds the queue full is lost, counted, and
that is said once there is room.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import BinaryIO

Line = bytes | Callable[[], bytes]
BOUND = 4096  # lines
_TOGETHER = 256  # lines in a write
_PAUSE = 0.02  # seconds in which further lines come to the first, so that a busy server wakes the thread seldom


class Writer:
    """`lost` counts lines; `said` makes the line about them. `close()` in the end."""

    def __init__(self, stream: BinaryIO, said: Callable[[int], bytes]) -> None:
        self.lost = 0
        self._stream = stream
        self._said = said
        self._told = 0  # of the lost
        self._queue: SimpleQueue[Line | None] = SimpleQueue()
        self._closing = Event()
        self._thread = Thread(target=self._run, name="log writer", daemon=True)
        self._thread.start()

    def put(self, line: Line) -> None:
        if self._queue.qsize() >= BOUND:
            self.lost += 1
        else:
            self._queue.put(line)

    def close(self, patience: float) -> None:
        """Write what is there, for at most that many seconds. What comes later may be lost."""
        self._closing.set()
        self._queue.put(None)
        self._thread.join(patience)

    # --- in the thread

    def _run(self) -> None:
        while self._turn():
            pass

    def _turn(self) -> bool:
        """False at the end. While it waits for the next line it keeps none of the last ones."""
        line = self._queue.get()
        if line is None:
            return False
        self._closing.wait(_PAUSE)
        self._write([line, *self._more()])
        return True

    def _more(self) -> list[Line]:
        lines: list[Line] = []
        while len(lines) < _TOGETHER - 1:
            try:
                line = self._queue.get_nowait()
            except Empty:
                break
            if line is None:
                self._queue.put(None)  # the end is for `_run` to see
                break
            lines.append(line)
        return lines

    def _made(self, line: Line) -> bytes:
        try:
            return line if isinstance(line, bytes) else line()
        except Exception:  # one odd request must not silence all that follow
            self.lost += 1
            return b""

    def _write(self, lines: list[Line]) -> None:
        lost = self.lost - self._told
        made = [self._made(line) for line in lines]
        if lost:
            made.append(self._said(lost))
        try:
            self._stream.write(b"".join(made))
            self._stream.flush()
            self._told += lost
        except (OSError, ValueError):  # nobody is there to tell: a broken pipe, a closed file
            self.lost += len(lines)
