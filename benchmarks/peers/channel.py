"""How the benchmark talks to a peer: one process per peer, one JSON object a line each way.

The peer's side (`answer`) needs the standard library only, because it runs in the peer's own virtual environment;
it redirects the process's standard output to standard error, since libraries like to print. Requests are
`{"op": "load" | "greedy" | "generate" | "quit", ...}`; see `Peer` for their fields.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Protocol


class Engine(Protocol):
    """What a worker script implements."""

    def load(self, model: str, threads: int) -> dict[str, Any]:
        """Load the file and get warm; returns facts worth printing, such as the version."""

    def generate(self, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
        """Run all prompts at once, greedily, exactly `tokens` new tokens each, nothing cached from before.

        Returns `outputs` (token ids) or `texts`, and `first_seconds`: until the first token, where the engine says so.
        """


class Failed(Exception):
    """A peer that died or answered with an error."""


class Worker:
    """The benchmark's side of one peer process."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send a request and wait for its answer; raises Failed."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps({"op": op, **fields}) + "\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise Failed(f"{self.name} ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Failed(f"{self.name}: {answer['error']}")
        return answer

    def close(self) -> None:
        if self._process.poll() is None and self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()


def answer(engine: Engine) -> None:
    """Serve requests from standard input until it closes."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        op = request.pop("op")
        try:
            result = getattr(engine, op)(**request)
        except Exception as error:  # the other side decides what a failure means
            result = {"error": f"{type(error).__name__}: {error}"}
        channel.write(json.dumps(result) + "\n")
