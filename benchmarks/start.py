"""`python -m benchmarks.start`: seconds from running `tailrace serve` to its first token, with everything warm.

Warm: the model is in the store with its packed weights and measured step costs, and Python has kept what it compiled
(also where the environment says that it should not). Also prints the installed size of
the core: tailrace and what it depends on, without pip and the tools of tests.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from importlib.metadata import PackageNotFoundError, distribution


def start(model: str) -> tuple[float, float]:
    """(seconds to the ready line, seconds to the first streamed text)."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "tailrace", "serve", *filter(None, [model]), "--port", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        line = next(line for line in process.stdout if line.startswith("ready"))
        ready = time.perf_counter() - begin
        first_token(re.findall(r"http://\S+", line)[0])
        return ready, time.perf_counter() - begin
    finally:
        process.terminate()
        process.wait()


def first_token(url: str) -> None:
    body = json.dumps({"prompt": "Hello", "max_tokens": 1, "temperature": 0, "stream": True, "ignore_eos": True})
    request = urllib.request.Request(
        url + "/v1/completions", body.encode(), {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request) as response:
        while not response.readline().startswith(b"data:"):
            pass


def installed_bytes(name: str = "tailrace", seen: set[str] | None = None) -> int:
    """Files of a distribution and of all it requires without extras."""
    seen = set() if seen is None else seen
    name = re.sub(r"[-_.]+", "-", name).lower()
    if name in seen:
        return 0
    seen.add(name)
    try:
        found = distribution(name)
    except PackageNotFoundError:  # for another platform or Python
        return 0
    size = sum(path.stat().st_size for file in found.files or [] if (path := found.locate_file(file)).is_file())
    needs = [need for need in found.requires or [] if "extra ==" not in need]
    return size + sum(installed_bytes(re.split(r"[^A-Za-z0-9._-]", need)[0], seen) for need in needs)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description=__doc__)
    parser.add_argument("--model", default="", help="a name of the store or a GGUF file; default: the default model")
    parser.add_argument("--rounds", type=int, default=5, help="counted starts, after one to warm up")
    options = parser.parse_args()
    runs = [start(options.model) for _ in range(options.rounds + 1)][1:]
    ready, first = (statistics.median(column) for column in zip(*runs, strict=True))
    print(f"ready after {ready:.2f} s, first token after {first:.2f} s (medians of {len(runs)} warm starts)")
    print(f"installed: {installed_bytes() / 1e6:.0f} MB with all dependencies")


if __name__ == "__main__":
    main()
