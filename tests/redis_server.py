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
    assert PROGRAM is not None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder)]
    process = subprocess.Popen([PROGRAM, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "Ready to accept connections" in line:
                break
        else:
            raise AssertionError("redis-server did not start")
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()
