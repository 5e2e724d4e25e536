"""Starting and stopping the servers that are compared over HTTP."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
START_SECONDS = 180
SLOTS = 34  # more than run at once, so that nobody waits for a slot
SLOT_TOKENS = 2048


class Server:
    """One server process; `problem` says why it is not counted."""

    def __init__(self, name: str, command: Callable[[int], list[str]]) -> None:
        self.name = name
        self.problem = ""
        self.model = name
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command(self.port), stdin=quiet, stdout=quiet, stderr=quiet)

    def wait(self) -> None:
        """Until it answers; sets `problem` when it doesn't."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self._process.poll() is not None:
                self.problem = f"ended with status {self._process.returncode} at start"
                return
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=5):
                    self.model = self._served_name()
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.2)
        self.problem = f"not ready after {START_SECONDS} s"

    def _served_name(self) -> str:
        with urllib.request.urlopen(self.url + "/v1/models", timeout=5) as answer:
            models = json.load(answer).get("data") or [{"id": self.name}]
        return str(models[0]["id"])

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()


def tailrace(model: Path, threads: int) -> Callable[[int], list[str]]:
    call = [sys.executable, "-m", "tailrace", "serve", str(model), "--threads", str(threads), "--no-prefix-cache"]
    call += ["--speculate", "off"]  # as in-process: answers of forced length repeat themselves
    return lambda port: [*call, "--port", str(port), "--max-sequences", str(SLOTS)]


def llama_server(
    binary: str, model: Path, threads: int, slots: int = SLOTS, slot_tokens: int = SLOT_TOKENS
) -> Callable[[int], list[str]]:
    call = [binary, "-m", str(model), "-t", str(threads), "-tb", str(threads), "-np", str(slots)]
    call += ["-c", str(slots * slot_tokens), "-fa", "on", "--no-webui", "--cache-ram", "0"]
    return lambda port: [*call, "--port", str(port)]


def openvino(python: str, model: Path, threads: int) -> Callable[[int], list[str]]:
    return lambda port: [python, str(HERE / "openvino_server.py"), str(model), str(port), str(threads)]


def nothing() -> Callable[[int], list[str]]:
    """The thin front alone."""
    return lambda port: [sys.executable, str(HERE / "thin_http.py"), str(port)]
