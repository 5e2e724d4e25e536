"""A real Redis on a free port, for the tests of limits that several gateways share."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PROGRAM = shutil.which("redis-server")
needs_redis = pytest.mark.skipif(
    PROGRAM is None, reason="redis-server is not installed (Debian: apt-get install redis-server)"
)


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """Its address. Keeps nothing on disk."""
    process, port = _started(folder)
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()


def _started(folder: Path) -> tuple[subprocess.Popen[str], int]:
    """Somebody else may take the free port before Redis does: then it ends, and another one is tried."""
    assert PROGRAM is not None
    for _ in range(5):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        arguments = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        process = subprocess.Popen([PROGRAM, *arguments, "--dir", str(folder)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if "Ready to accept connections" in line:
                return process, port
        process.wait()
    raise AssertionError(f"redis-server did not start: {''.join(said)}")
