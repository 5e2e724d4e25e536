"""A real server in a process of its own, which says on demand how many of its objects there are.

As a program it is `tailrace serve` with a thread beside it: each line of its input is answered with one of counts.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

# What must not stay behind, by its class; the names are for people.
WATCHED = {
    "connections": ("tailrace.api.connection", "BoundedConnection"),
    "timelines": ("tailrace.observe.timeline", "Timeline"),
    "sessions": ("tailrace.control.session", "Session"),
    "runs": ("tailrace.control.run", "Run"),
    "holds": ("tailrace.control.limits.limiter", "Hold"),
    "sequences": ("tailrace.engine.sequence", "Sequence"),
    "streams": ("tailrace.control.streams", "Stream"),
}
_SAYS = "counts "
MiB = 2**20


def counts() -> dict[str, int]:
    """Live objects of each watched class in this process, and tasks by what they do."""
    gc.collect()
    objects = gc.get_objects()
    found = Counter((type(each).__module__, type(each).__name__) for each in objects)
    tasks = Counter(f"task {_of(each)}" for each in objects if isinstance(each, asyncio.Task) and not each.done())
    return {name: found[key] for name, key in WATCHED.items()} | tasks


def _of(task: asyncio.Task[object]) -> str:
    return getattr(task.get_coro(), "__qualname__", "of no name")


def answer() -> None:
    for _ in sys.stdin:
        print(_SAYS + json.dumps(counts()), flush=True)


class Served:
    """A running server: its address, its process, and looks into it."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.url = url
        self.pid = process.pid
        self._process = process

    async def counts(self) -> dict[str, int]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(b"\n")
        while line := await self._process.stdout.readline():
            if line.startswith(_SAYS.encode()):
                found: dict[str, int] = json.loads(line[len(_SAYS) :])
                return {**found, "file handles": self.handles()}
        raise SystemExit("the server has ended")

    def handles(self) -> int:
        """Less those of the database, of which the pool opens a bounded number as requests want them at once."""
        folder = Path(f"/proc/{self.pid}/fd")
        return sum("tailrace.db" not in _target(each) for each in folder.iterdir())

    def resident(self) -> float:
        """MiB."""
        return (
            int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1])
            * os.sysconf("SC_PAGESIZE")
            / MiB
        )


def _target(handle: Path) -> str:
    try:
        return os.readlink(handle)
    except FileNotFoundError:  # closed meanwhile
        return ""


@asynccontextmanager
async def served(model: str, folder: Path, *flags: str) -> AsyncIterator[Served]:
    """With its data and its log in the folder. It is stopped at the end, and must stop well."""
    command = [sys.executable, "-m", __name__, model, "--port", "0", "--data-folder", str(folder), *flags]
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log
        )
    try:
        yield Served(process, await _address(process))
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.communicate()
    if process.returncode:
        raise SystemExit(f"the server ended with status {process.returncode}")


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async for line in process.stdout:
        found = re.search(r"^ready .*?(http://\S+)", line.decode())
        if found is not None:
            return found[1]
    raise SystemExit("the server did not start")


if __name__ == "__main__":
    from tailrace.__main__ import main

    threading.Thread(target=answer, daemon=True).start()
    sys.argv[1:1] = ["serve"]
    main()
