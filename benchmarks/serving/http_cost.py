"""What HTTP costs at many streams: `python -m benchmarks.serving.http_cost [MODEL] [--streams 32] [--rounds 4]`.

One process holds the engine and a whole server around it. In turns the same requests, all at once, go to the engine's
backend within the process, and over HTTP as streams, from a client in a process of its own that takes next to nothing.
Printed: tokens a second both ways, and processor time for a token: the server's (all of its threads), and the
client's, which shares the cores with it. The part by which the server's time is longer is what HTTP costs; that by
which tokens are slower also has the client in it. Times of a busy machine say little, their ratios and processor time
more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import uvloop
from benchmarks.serving.light_client import Connection

from tailrace.api.server import Service
from tailrace.api.state import AppState, one_model
from tailrace.config import ApiConfig, Config, EngineConfig
from tailrace.control.pipeline import Pipeline
from tailrace.llm.ready import Model, ready_model
from tailrace.observe.metrics import Metrics
from tailrace.types import GenerateRequest, SamplingParams, StopConditions

VOCABULARY = (1000, 20_000)


@dataclass(frozen=True, slots=True)
class Load:
    streams: int
    tokens_in: int
    tokens_out: int

    def prompts(self, seed: int) -> list[list[int]]:
        rng = random.Random(seed)
        return [[rng.randrange(*VOCABULARY) for _ in range(self.tokens_in)] for _ in range(self.streams)]

    @property
    def tokens(self) -> int:
        return self.streams * self.tokens_out


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds: of the wall, and of processors."""

    wall: float
    server: float
    client: float = 0.0


async def direct(model: Model, load: Load, seed: int) -> Round:
    """Within the process: one task for each request, which reads its events."""

    async def read(number: int, prompt: list[int]) -> None:
        stop, sampling = StopConditions(load.tokens_out, ignore_eos=True), SamplingParams(temperature=0.0)
        request = GenerateRequest(f"{seed}/{number}", model.name, np.array(prompt, np.int32), sampling, stop)
        async for _ in model.backend.generate(request):
            pass

    cpu, begin = time.process_time(), time.perf_counter()
    await asyncio.gather(*(read(number, prompt) for number, prompt in enumerate(load.prompts(seed))))
    return Round(time.perf_counter() - begin, time.process_time() - cpu)


async def over_http(url: str, load: Load, seed: int) -> Round:
    numbers = [str(number) for number in (load.streams, load.tokens_in, load.tokens_out, seed)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.serving.http_cost", "--client", url, *numbers,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    await process.stdout.readline()  # it is connected, and what it will send is made
    cpu = time.process_time()
    process.stdin.write(b"\n")
    found = json.loads(await process.stdout.readline())
    used = time.process_time() - cpu
    await process.wait()
    return Round(found["wall"], used, found["cpu"])


async def client(url: str, load: Load, seed: int) -> None:
    loop, parts = asyncio.get_running_loop(), urlsplit(url)
    pool: deque[Connection] = deque()
    times: list[tuple[float, float]] = []
    requests = [_request(parts.netloc, prompt, load.tokens_out) for prompt in load.prompts(seed)]
    for _ in requests:
        await loop.create_connection(lambda: Connection(pool, times), parts.hostname, parts.port)
    print(flush=True)
    sys.stdin.readline()
    cpu, begin, connections = time.process_time(), time.perf_counter(), list(pool)
    for connection, request in zip(connections, requests, strict=True):
        connection.send(request)
    for connection in connections:
        assert connection.done is not None
        await connection.done.wait()
    print(json.dumps({"wall": time.perf_counter() - begin, "cpu": time.process_time() - cpu}), flush=True)


def _request(host: str, prompt: list[int], tokens: int) -> bytes:
    asked = {"prompt": prompt, "max_tokens": tokens, "stream": True, "temperature": 0, "ignore_eos": True}
    body = json.dumps(asked).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def measure(model: Model, config: Config, load: Load, rounds: int) -> None:
    metrics = Metrics()
    model.backend.start()
    pipeline = Pipeline(model.backend, config.control, model.clock, metrics)
    models = one_model(pipeline, model.tokenizer, model.template, config, model.clock)
    service = Service(AppState(config, pipeline, models, metrics, model.clock))
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(service.run(on_listening=listening.set_result, signals=False))
    url, found = await listening, dict[str, list[Round]](direct=[], http=[])
    for turn in range(rounds + 1):
        both = await direct(model, load, turn), await over_http(url, load, turn)
        print(f"round {turn}: {both[0].wall:.1f} s within the process, {both[1].wall:.1f} s over HTTP", file=sys.stderr)
        if turn:  # the first warms up
            for name, one in zip(found, both, strict=True):
                found[name].append(one)
    service.stop()
    await serving
    model.backend.close()
    report(found, load)


def report(found: dict[str, list[Round]], load: Load) -> None:
    print(f"{load.streams} streams of {load.tokens_in} in and {load.tokens_out} out, medians of {len(found['http'])}")
    print(f"{'':10}{'tok/s out':>12}{'server CPU, us/token':>24}{'client CPU, us/token':>24}")
    for name, rounds in found.items():
        rate = statistics.median(load.tokens / one.wall for one in rounds)
        used = [statistics.median(values) / load.tokens * 1e6 for values in _columns(rounds)]
        print(f"{name:10}{rate:12.1f}{used[0]:24.0f}{used[1]:24.0f}")
    pairs = list(zip(found["direct"], found["http"], strict=True))
    for name, ratios in (
        ("server's processor time", [http.server / direct.server for direct, http in pairs]),
        ("with the client's", [(http.server + http.client) / direct.server for direct, http in pairs]),
        ("wall time", [http.wall / direct.wall for direct, http in pairs]),
    ):
        shown = " ".join(f"{100 * (ratio - 1):+.1f}" for ratio in sorted(ratios))
        print(f"{name:24} {100 * (statistics.median(ratios) - 1):+.1f} % over HTTP ({shown})")


def _columns(rounds: list[Round]) -> tuple[list[float], list[float]]:
    return [one.server for one in rounds], [one.client for one in rounds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=EngineConfig().model)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens-in", type=int, default=32)
    parser.add_argument("--tokens-out", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--client", nargs=5, help=argparse.SUPPRESS)
    options: Any = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if options.client:
            url, *numbers = options.client
            *sizes, seed = map(int, numbers)
            runner.run(client(url, Load(*sizes), seed))
            return
        config = Config(
            api=ApiConfig(port=0),
            engine=EngineConfig(
                model=options.model, prefix_cache=False, speculate="off", max_sequences=options.streams
            ),
        )
        load = Load(options.streams, options.tokens_in, options.tokens_out)
        runner.run(measure(ready_model(config.engine), config, load, options.rounds))


if __name__ == "__main__":
    main()
