"""What the serving plane adds to the first token's time: `python -m benchmarks.serving.overhead`.

The same tiny streamed chats at a steady rate (open loop) go to three servers, in turns: `bare`, which reads the body
and answers with fixed events (uvicorn, and nothing of ours); `plane`, tailrace over the fake backend; and `tenants`,
the same with keys, tenants and limits. What `plane` takes longer than `bare` is the plane's. The last columns are
processor time for a whole request: the server's, and that of the load generator, which has a process of its own and
shares the cores with it. On a busy machine only p5 and the processor time say what nothing disturbed. `--rate 0`
sends one after another, so that no cache grows cold between them: what the plane computes, without what the machine's
idling costs.

`--stages` tells which part of the plane the time of a request goes to (`stages`). `--inside` times the control plane's
own steps in one process, without HTTP: best, 10 % quantile and median.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import uvicorn
import uvloop
from benchmarks.serving.stages import measure as stage_times

from tailrace.api.server import Service
from tailrace.api.state import AppState, one_model
from tailrace.backends.fake import FakeBackend, fake_tokenizer, say
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
    backend = FakeBackend(max_sequences=64, script=say("pong"))
    pipeline = Pipeline(backend, config.control, clock, metrics, tenants=Tenants.of(config))
    models = one_model(pipeline, fake_tokenizer(), ChatTemplate(TEMPLATE, clock=clock), config, clock)
    return AppState(config, pipeline, models, metrics, clock)


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


def serve(mode: str) -> None:
    gc.freeze()  # as `tailrace serve` does
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, contextlib.suppress(KeyboardInterrupt):
        runner.run(serve_bare() if mode == "bare" else run_plane(mode))


async def run_plane(mode: str) -> None:
    await Service(state(mode)).run(on_listening=lambda url: print(url, flush=True))


async def started(mode: str) -> tuple[asyncio.subprocess.Process, str]:
    arguments = ["-m", "benchmarks.serving.overhead", "--serve", mode]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    return process, (await process.stdout.readline()).decode().strip()


async def load(url: str, options: argparse.Namespace, turn: int) -> dict[str, Any]:
    """What the load generator found: (first event, end) of each request, and its own processor time."""
    arguments = ["--rate", str(options.rate), "--requests", str(options.requests), "--seed", str(turn), "--key", KEY]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.serving.light_client", url, *arguments, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    found: dict[str, Any] = orjson.loads(out)
    return found


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


def cpu_seconds(pid: int) -> float:
    """That the process has used so far, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class Measured:
    first: list[float] = field(default_factory=list)  # seconds to the first event
    server: float = 0.0  # processor seconds
    client: float = 0.0


async def measure(options: argparse.Namespace) -> None:
    servers = {mode: await started(mode) for mode in SERVERS}
    found = {mode: Measured() for mode in SERVERS}
    try:
        for turn in range(options.rounds + 1):
            for mode, (process, url) in servers.items():
                before = cpu_seconds(process.pid)
                got = await load(url, options, turn)
                if not turn:  # warms up
                    continue
                found[mode].first += [first for first, _ in got["times"]]
                found[mode].server += cpu_seconds(process.pid) - before
                found[mode].client += got["cpu"]
    finally:
        for process, _ in servers.values():
            process.send_signal(signal.SIGINT)
        await asyncio.gather(*(process.wait() for process, _ in servers.values()))
    report(found, options)


def report(found: dict[str, Measured], options: argparse.Namespace) -> None:
    count = len(found["bare"].first)
    rate = f"at {options.rate:g} requests/s" if options.rate else "one after another"
    print(f"first event in ms {rate}, {count} requests each; CPU in ms of a request")
    print(f"{'':10}{'p5':>8} {'p50':>8} {'p90':>8} {'p99':>8} {'mean':>8} {'CPU':>8} {'client':>8}")
    rows = {mode: row(each) for mode, each in found.items()}
    for mode, values in rows.items():
        print(f"{mode:10}" + " ".join(f"{value:8.3f}" for value in values))
    for mode in SERVERS[1:]:
        added = [mine - base for mine, base in zip(rows[mode][:6], rows["bare"], strict=False)]
        print(f"{mode + ' +':10}" + " ".join(f"{value:8.3f}" for value in added))


def row(of: Measured) -> list[float]:
    ordered = [1000 * value for value in sorted(of.first)]
    parts = statistics.quantiles(ordered, n=100)
    times = [parts[4], parts[49], parts[89], parts[98], statistics.fmean(ordered)]
    return [*times, 1000 * of.server / len(ordered), 1000 * of.client / len(ordered)]


async def stages() -> None:
    await stage_times(state("plane"), KEY)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second; 0: one after another")
    parser.add_argument("--requests", type=int, default=500, help="in each turn")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--stages", action="store_true", help="where in the plane, without sockets")
    parser.add_argument("--inside", action="store_true", help="the control plane's own steps, without HTTP")
    parser.add_argument("--serve", choices=SERVERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
    elif options.stages:
        asyncio.run(stages())
    elif options.inside:
        for mode in SERVERS[1:]:
            asyncio.run(inside(mode))
    else:
        asyncio.run(measure(options))


if __name__ == "__main__":
    main()
