"""Our server as its users start it, in a process of its own on a free port."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import IO

READY = re.compile(r"http://[\d.]+:\d+")


@contextmanager
def serving(log: Path, *options: str) -> Iterator[str]:
    """The address of `tailrace serve OPTIONS`; what it prints goes to `log`. RuntimeError if it does not start."""
    command = [sys.executable, "-m", "tailrace", "serve", "--port", "0", *options]
    with log.open("w") as kept:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=kept, text=True)
        assert process.stdout is not None
        try:
            yield _address(process.stdout, log)
        finally:
            process.terminate()
            process.wait()


def _address(printed: IO[str], log: Path) -> str:
    for line in printed:
        found = READY.search(line)
        if "ready" in line and found:
            Thread(target=printed.read, daemon=True).start()  # nobody reads on: a full pipe would stop the server
            return found.group()
    raise RuntimeError(f"the server did not start; its log is {log}")
