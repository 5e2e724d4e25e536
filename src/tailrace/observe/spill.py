"""A file for rows that their database cannot take now: appended to, read again in order, emptied. A line of JSON each.

A server uses the lowest numbered file of its folder that no other has locked; what one that was killed left there is
read too. A line that was cut off by that, or by a full disk, is dropped and counted. The file's size is bounded.
"""

from __future__ import annotations

import fcntl
import logging
import os
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

import orjson

log = logging.getLogger(__name__)

Row = dict[str, Any]
_CHUNK = 1024 * 1024  # bytes that are read at once


class Spill:
    """Calls block on the disk, so they are made in threads; one at a time has its way. Raises nothing for a disk that
    does not do what it should: rows that could not be kept are counted."""

    def __init__(self, folder: Path, most: int) -> None:
        """`most`: bytes of its own file."""
        self.torn = 0  # lines that could not be read
        self._folder = folder
        self._most = most
        self._own: _File | None = None
        self._left: list[_File] = []  # by servers that are gone
        self._lock = Lock()
        self._said = False

    @property
    def nbytes(self) -> int:
        """Of rows that are still to be read."""
        return sum([file.unread for file in (*self._left, *filter(None, (self._own,)))])

    def open(self) -> None:
        """Find what was left. Nothing is made where there is nothing."""
        with self._lock:
            self._find(make=False)

    def append(self, rows: list[Row]) -> int:
        """Returns how many of them are kept now, from the first on."""
        with self._lock:
            if self._own is None:
                self._find(make=True)
            if self._own is None:
                return 0
            lines = [orjson.dumps(row) + b"\n" for row in rows]
            kept, room = 0, self._most - self._own.size
            while kept < len(lines) and len(lines[kept]) <= room:
                room -= len(lines[kept])
                kept += 1
            return kept if self._own.append(b"".join(lines[:kept])) else 0

    def read(self, most: int) -> list[Row]:
        """The oldest rows, at most so many: the same ones until `forget`."""
        with self._lock:
            for file in (*self._left, *filter(None, (self._own,))):
                lines = file.read(most)
                if lines:
                    return [row for line in lines if (row := self._row(line)) is not None]
            return []

    def forget(self) -> None:
        """What `read` gave last is kept elsewhere."""
        with self._lock:
            for file in (*self._left, *filter(None, (self._own,))):
                file.forget()
            for file in [file for file in self._left if not file.unread]:
                file.close()
                self._left.remove(file)

    def close(self) -> None:
        with self._lock:
            for file in (*self._left, *filter(None, (self._own,))):
                file.close()
            self._own, self._left = None, []

    def _find(self, *, make: bool) -> None:
        """Lock the files that nobody else has: the first is our own."""
        try:
            if make:
                self._folder.mkdir(parents=True, exist_ok=True)
            for number in count():
                path = self._folder / f"ledger.{number}.jsonl"
                if not path.exists() and (self._own is not None or not make):
                    return
                file = _File.locked(path)
                if file is None:
                    continue
                self.torn += file.mend()
                if self._own is None:
                    self._own = file
                elif file.unread:
                    self._left.append(file)
                else:
                    file.close()
        except OSError as error:
            if not self._said:
                log.error("rows of the ledger cannot be set aside in %s: %s", self._folder, error)
            self._said = True

    def _row(self, line: bytes) -> Row | None:
        with suppress(orjson.JSONDecodeError):
            row = orjson.loads(line)
            if isinstance(row, dict):
                return row
        self.torn += 1
        return None


class _File:
    """`size` bytes of whole lines, of which `position` are read."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self.size = size
        self._position = 0
        self._next = 0  # behind what was read last

    @classmethod
    def locked(cls, path: Path) -> _File | None:
        """None while another process has it. Raises OSError."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return cls(descriptor, os.fstat(descriptor).st_size)
        except BlockingIOError:
            os.close(descriptor)
            return None

    @property
    def unread(self) -> int:
        return self.size - self._position

    def mend(self) -> int:
        """Cut off a last line that is not whole; how many there were."""
        end = self.size
        while end:
            start = max(end - _CHUNK, 0)
            at = os.pread(self._descriptor, end - start, start).rfind(b"\n")
            if at >= 0:
                end = start + at + 1
                break
            end = start
        torn, self.size = int(end < self.size), end
        if torn:
            os.ftruncate(self._descriptor, end)
        return torn

    def append(self, data: bytes) -> bool:
        """All of it or nothing."""
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(self._descriptor, data[done:], self.size + done)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self.size)
            return False
        self.size += len(data)
        return True

    def read(self, most: int) -> list[bytes]:
        data = b""
        while len(data) < self.unread and data.count(b"\n") < most:
            more = os.pread(self._descriptor, _CHUNK, self._position + len(data))
            if not more:
                break
            data += more
        lines = data[: self.unread].splitlines(keepends=True)[:most]
        self._next = self._position + sum(map(len, lines))
        return lines

    def forget(self) -> None:
        self._position = max(self._next, self._position)
        if self._position and self._position == self.size:
            with suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            self.size = self._position = self._next = 0

    def close(self) -> None:
        os.close(self._descriptor)
