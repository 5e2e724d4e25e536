"""llama.cpp through its own `llama-server`, from the same GGUF file. Standard library only.

Argument: the path of the binary. Its HTTP side costs a fraction of a millisecond a request here; the time to the
first token is the one it reports itself.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from channel import answer

SLOTS = 32
SLOT_TOKENS = 2112  # the longest prompt and its answer
START_SECONDS = 120


class LlamaServer:
    def __init__(self, binary: str) -> None:
        self._binary = binary
        self._process: subprocess.Popen[bytes] | None = None

    def load(self, model: str, threads: int) -> dict[str, Any]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        command = [self._binary, "-m", model, "--port", str(port), "-t", str(threads), "-tb", str(threads)]
        command += ["-np", str(SLOTS), "-c", str(SLOTS * SLOT_TOKENS), "-fa", "on", "--no-webui"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._wait_until_ready()
        about = subprocess.run([self._binary, "--version"], capture_output=True, text=True, check=False)
        return {"version": (about.stderr or about.stdout).strip().splitlines()[0]}

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(self._url + "/health", timeout=5):
                    return
            except (urllib.error.URLError, ConnectionError):
                if self._process is not None and self._process.poll() is not None:
                    raise RuntimeError(f"llama-server ended with status {self._process.returncode}") from None
                time.sleep(0.1)
        raise RuntimeError(f"llama-server was not ready after {START_SECONDS} s")

    def generate(self, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
        begin = time.perf_counter()
        with ThreadPoolExecutor(len(prompts)) as pool:
            answers = list(pool.map(lambda prompt: self._complete(prompt, tokens), prompts))
        seconds = time.perf_counter() - begin
        first = max(answer["timings"]["prompt_ms"] for answer in answers) / 1e3
        return {"seconds": seconds, "first_seconds": first, "outputs": [answer["tokens"] for answer in answers]}

    def _complete(self, prompt: list[int], tokens: int) -> dict[str, Any]:
        body = {"prompt": prompt, "n_predict": tokens, "ignore_eos": True, "temperature": 0.0, "return_tokens": True}
        body |= {"cache_prompt": False, "stream": False}
        request = urllib.request.Request(
            self._url + "/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=600) as response:
            result: dict[str, Any] = json.load(response)
            return result

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=20)


if __name__ == "__main__":
    server = LlamaServer(sys.argv[1])
    try:
        answer(server)
    finally:
        server.close()
