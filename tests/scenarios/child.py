"""A server of the tests in a process of its own, so that it can be signalled and killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@asynccontextmanager
async def child(
    module: str, *arguments: str, ended_by: signal.Signals = signal.SIGKILL
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """The process of `python -m module`, and the first line it prints: where it listens."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        *arguments,
        env=environ,
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield process, (await process.stdout.readline()).decode().strip()
    finally:
        if process.returncode is None:
            process.send_signal(ended_by)
        await process.wait()
