"""What the serving plane adds to the first token's time: `python -m benchmarks.serving.overhead`.

The same tiny streamed chats at a steady rate go to three servers, in turns: `bare`, which reads the body and answers
with fixed events (uvicorn, and nothing of ours); `plane`, tailrace over the fake backend; and `tenants`, the same with
keys, tenants and limits. What `plane` takes longer than `bare` is the plane's. With `--profile` the functions of the
plane in which the time went. The last column is the server's processor time for a whole request. Client and servers
share the machine's cores, as they would on a laptop; on a busy machine only p5 says what nothing disturbed.

`--inside` times the control plane's own steps in one process, without HTTP: best, 10 % quantile and median. The best is
what they take when nobody else uses the core.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import os
import pstats
import random
import signal
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import orjson
import uvicorn
import uvloop

from tailrace.api.server import Service
from tailrace.api.state import AppState
from tailrace.backends.fake import FakeBackend, fake_tokenizer
from tailrace.clock import SystemClock
from tailrace.config import ApiConfig, Config
from tailrace.control.intake import Caller
from tailrace.control.keys import digest
from tailrace.control.pipeline import Pipeline
from tailrace.control.tenants import Tenants
from tailrace.observe.metrics import Metrics
from tailrace.observe.timeline import Timeline
from tailrace.policy import KeyPolicy, Policy, Quota, TenantPolicy
from tailrace.text.template import ChatTemplate
from tailrace.types import GenerateRequest, SamplingParams, StopConditions

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
EVENT = b'data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
KEY = "sk-benchmark"
SERVERS = ("bare", "plane", "tenants")


def policy() -> Policy:
    quota = Quota(6_000_000, 60_000_000, 60_000_000, 6000.0, 64)
    keys = (KeyPolicy("k", f"sha256:s:{digest(KEY, 's')}", limits=quota),)
    others = [TenantPolicy(f"t{i}", keys=(KeyPolicy("k", f"sha256:s:{digest(str(i), 's')}"),)) for i in range(20)]
    return Policy((TenantPolicy("acme", limits=quota, keys=keys), *others))


def state(mode: str) -> AppState:
    clock, metrics = SystemClock(), Metrics()
    config = Config(api=ApiConfig(port=0), policy=policy() if mode == "tenants" else Policy())
    backend = FakeBackend(max_sequences=64)
    pipeline = Pipeline(backend, config.control, clock, metrics, tenants=Tenants.of(config))
    return AppState(config, pipeline, fake_tokenizer(), ChatTemplate(TEMPLATE, clock=clock), metrics, clock)


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """As little as a streaming server can do."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    orjson.loads(body)
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for _ in range(4):
        await send({"type": "http.response.body", "body": EVENT, "more_body": True})
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def serve_bare() -> None:
    config = uvicorn.Config(bare, port=0, log_config=None, access_log=False, lifespan="off")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn tells nobody
        await asyncio.sleep(0.01)
    print(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", flush=True)
    await task


def serve(mode: str, profiled: bool) -> None:
    profiler = cProfile.Profile(time.process_time)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if mode == "bare":
            with contextlib.suppress(KeyboardInterrupt):
                runner.run(serve_bare())
            return
        if profiled:
            profiler.enable()
        runner.run(run_plane(mode))
        profiler.disable()
    if profiled:
        stats = pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime")
        stats.print_stats(40)


async def run_plane(mode: str) -> None:
    await Service(state(mode)).run(on_listening=lambda url: print(url, flush=True))


async def started(mode: str, profiled: bool) -> tuple[asyncio.subprocess.Process, str]:
    arguments = ["-m", "benchmarks.serving.overhead", "--serve", mode, *(["--profile"] if profiled else [])]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    return process, (await process.stdout.readline()).decode().strip()


async def one(session: aiohttp.ClientSession, url: str, number: int) -> float:
    """Seconds to the first event's bytes."""
    body = {"messages": [{"role": "user", "content": f"Ping {number}"}], "max_tokens": 4, "stream": True}
    begin = time.perf_counter()
    async with session.post(f"{url}/v1/chat/completions", data=orjson.dumps(body)) as answer:
        assert answer.status == 200, await answer.text()
        await answer.content.readany()
        first = time.perf_counter() - begin
        await answer.read()
    return first


async def inside(mode: str, count: int = 600) -> None:
    """What a request does between the checked body and the backend, and at its end."""
    pipeline = state(mode).pipeline
    seconds: dict[str, list[float]] = {}

    @contextlib.contextmanager
    def timed(name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        seconds.setdefault(name, []).append(time.perf_counter() - begin)

    for number in range(count):
        timeline, prompt = Timeline(pipeline.clock), np.arange(20 + number % 7, dtype=np.int32)
        stop = StopConditions(4, ignore_eos=True)
        request = GenerateRequest(f"r{number}", "fake", prompt, SamplingParams(), stop)
        with timed("identify"):
            caller = Caller(pipeline.tenants.identify(KEY, 0.0))
        with timed("door"):
            pipeline.look(caller.principal.tenant)
            place = pipeline.door(1, caller.principal.tenant, 3)
        with timed("admit"):
            run = (await pipeline.admit(place, [request], timeline, caller))[0]
        place.release()
        async for _ in run:
            pass
        with timed("end"):
            await run.close()
    await pipeline.close()
    for name, values in seconds.items():
        ordered = [1000 * value for value in sorted(values)]
        quantiles = (ordered[0], ordered[count // 10], ordered[count // 2])
        print(f"{mode:8} {name:9}" + " ".join(f"{value:8.3f}" for value in quantiles) + "  ms")


async def paced(rate: float, count: int, rng: random.Random, send: Callable[[int], Awaitable[float]]) -> list[float]:
    """Poisson arrivals, whatever is still under way."""
    tasks = []
    due = time.perf_counter()
    for number in range(count):
        due += rng.expovariate(rate)
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        tasks.append(asyncio.create_task(send(number)))  # type: ignore[arg-type]
    return list(await asyncio.gather(*tasks))


def cpu_seconds(pid: int) -> float:
    """That the process has used so far, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(options: argparse.Namespace) -> None:
    servers = {mode: await started(mode, options.profile and mode == "plane") for mode in SERVERS}
    times: dict[str, list[float]] = {mode: [] for mode in SERVERS}
    cpu = dict.fromkeys(SERVERS, 0.0)
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    try:
        async with aiohttp.ClientSession(headers=headers) as session:
            for turn in range(options.rounds + 1):
                for mode, (process, url) in servers.items():
                    before = cpu_seconds(process.pid)
                    send = lambda number, url=url: one(session, url, number)  # noqa: E731
                    got = await paced(options.rate, options.requests, random.Random(turn), send)
                    times[mode] += got if turn else []  # the first turn warms up
                    cpu[mode] += cpu_seconds(process.pid) - before if turn else 0.0
    finally:
        for process, _ in servers.values():
            process.send_signal(signal.SIGINT)
        await asyncio.gather(*(process.wait() for process, _ in servers.values()))
    report(times, cpu, options)


def report(times: dict[str, list[float]], cpu: dict[str, float], options: argparse.Namespace) -> None:
    print(f"first byte in ms at {options.rate:g} requests/s, {len(times['bare'])} requests each")
    print(f"{'':10}{'p5':>8} {'p50':>8} {'p90':>8} {'p99':>8} {'mean':>8} {'CPU':>8}")
    rows = {}
    for mode, values in times.items():
        ordered = [1000 * value for value in sorted(values)]
        quantiles = statistics.quantiles(ordered, n=100)
        rows[mode] = (quantiles[4], quantiles[49], quantiles[89], quantiles[98], statistics.fmean(ordered))
        per = 1000 * cpu[mode] / len(values)
        print(f"{mode:10}" + " ".join(f"{value:8.3f}" for value in rows[mode]) + f" {per:8.3f}")
    for mode in SERVERS[1:]:
        added = [mine - base for mine, base in zip(rows[mode], rows["bare"], strict=True)]
        print(f"{mode + ' +':10}" + " ".join(f"{value:8.3f}" for value in added))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second")
    parser.add_argument("--requests", type=int, default=500, help="in each turn")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--profile", action="store_true", help="of the plane; it is slower then")
    parser.add_argument("--inside", action="store_true", help="the control plane's own steps, without HTTP")
    parser.add_argument("--serve", choices=SERVERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.profile)
    elif options.inside:
        for mode in SERVERS[1:]:
            asyncio.run(inside(mode))
    else:
        asyncio.run(measure(options))


if __name__ == "__main__":
    main()
