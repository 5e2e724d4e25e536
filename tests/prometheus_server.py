"""A real Prometheus on a free port, with the configuration that deploy/ ships, for tests of what it makes of ours."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

DEPLOY = Path(__file__).parents[1] / "deploy"
PROGRAM, TOOL = shutil.which("prometheus"), shutil.which("promtool")
needs_prometheus = pytest.mark.skipif(
    PROGRAM is None or TOOL is None, reason="prometheus is not installed (Debian: apt-get install prometheus)"
)


class Prometheus:
    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an expression now. Raises AssertionError with what Prometheus says of a bad one."""
        answer = (await self._client.post("/api/v1/query", data={"query": expression})).json()
        assert answer["status"] == "success", f"{expression}: {answer.get('error')}"
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    async def rules(self) -> list[dict[str, Any]]:
        groups = (await self._client.get("/api/v1/rules")).json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]


@asynccontextmanager
async def prometheus(folder: Path, target: str) -> AsyncIterator[Prometheus]:
    """Scrapes `target` (HOST:PORT) five times a second, as fast evaluating the rules."""
    assert PROGRAM is not None
    config = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    config = config.replace("127.0.0.1:8000", target).replace("interval: 15s", "interval: 200ms")
    (folder / "prometheus.yml").write_text(config)
    shutil.copytree(DEPLOY / "prometheus" / "rules", folder / "rules")
    process, port = await _started(folder)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield Prometheus(client)
    finally:
        process.kill()
        process.wait()


async def _started(folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Somebody else may take the free port before it does: then it ends, and another one is tried."""
    for _ in range(5):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        arguments = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        process = _run([*arguments, f"--web.listen-address=127.0.0.1:{port}"], folder / "log")
        if await _ready(process, port):
            return process, port
        process.kill()
        process.wait()
    raise AssertionError(f"prometheus did not start: {(folder / 'log').read_text()}")


def _run(arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen([str(PROGRAM), *arguments], stdout=out, stderr=out)


async def _ready(process: subprocess.Popen[bytes], port: int) -> bool:
    async with httpx.AsyncClient() as client:
        while process.poll() is None:
            try:
                if (await client.get(f"http://127.0.0.1:{port}/-/ready")).status_code == 200:
                    return True
            except httpx.TransportError:
                pass
            await anyio.sleep(0.05)
    return False
