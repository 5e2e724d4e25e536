"""What traces and log lines cost a request on the event loop's thread: `python -m benchmarks.serving.observing`.

The same tiny chats go straight into the application, without sockets, over the fake backend, by turns: nobody watches;
a line per request as JSON, or as text; spans and metrics to a collector that takes them; to one that is away; both.
`loop` is processor time of the event loop's thread; `wall` includes waiting for the interpreter while the threads have
it that make lines and spans. What those then do with a request follows, in time of theirs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import io
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import Process, SimpleQueue
from typing import Any

import numpy as np
import orjson
import uvloop
from benchmarks.serving.overhead import state as plane
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from tailrace.api.app import create_app
from tailrace.config import Config, ObserveConfig
from tailrace.engine.loop import SWITCH_INTERVAL
from tailrace.observe.ended import Ended
from tailrace.observe.logs.lines import JsonLines, TextLines
from tailrace.observe.logs.logs import logging_to
from tailrace.observe.logs.redact import Redactor
from tailrace.observe.otel.collector import Collector
from tailrace.observe.otel.sdk import Sdk
from tailrace.observe.otel.telemetry import Telemetry
from tailrace.observe.trace_context import TraceContext

BODY = orjson.dumps({"model": "fake", "messages": [{"role": "user", "content": "ping"}], "max_tokens": 4})
HEADERS = [(b"host", b"x"), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]
WARM = 200  # requests of each mode before it counts


class Sink(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def collect(urls: SimpleQueue[str]) -> None:
    """A collector, in a process of its own."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Sink)
    urls.put(f"http://127.0.0.1:{server.server_port}")
    server.serve_forever()


@contextmanager
def collector() -> Iterator[str]:
    urls: SimpleQueue[str] = SimpleQueue()
    process = Process(target=collect, args=(urls,), daemon=True)
    process.start()
    try:
        yield urls.get()
    finally:
        process.kill()
        process.join()


def nowhere() -> str:
    """An address that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@contextmanager
def watchers(url: str) -> Iterator[dict[str, tuple[Any, ...]]]:
    """Of each mode. All live side by side."""
    with ExitStack() as stack:
        logs = {}
        for form in ("json", "text"):
            config = replace(Config(), observe=ObserveConfig(log_level="info", log_format=form))
            logs[form] = stack.enter_context(logging_to(io.BytesIO(), config))
        sending = {"otel": Telemetry(Collector(url, {})), "otel away": Telemetry(Collector(nowhere(), {}))}
        for telemetry in sending.values():
            telemetry.start()
            stack.callback(telemetry.close, 10.0)
        single = {name: (each,) for name, each in {**logs, **sending}.items()}
        yield {"off": (), **single, "json + otel": (*single["json"], *single["otel"])}


async def request(app: Any) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        assert message.get("status", 200) == 200

    scope = {
        "type": "http", "method": "POST", "path": "/v1/chat/completions", "query_string": b"", "headers": HEADERS,
        "state": {"leavers": set()},
    }  # fmt: skip
    await app(scope, receive, send)


async def measure(requests: int, url: str) -> dict[str, list[tuple[float, float]]]:
    """Loop and wall microseconds of each request, the modes by turns in an order drawn anew each time."""
    state, draw = plane("plane"), random.Random(0)
    app = create_app(state)
    with watchers(url) as modes:
        found: dict[str, list[tuple[float, float]]] = {mode: [] for mode in modes}
        for number in range(requests):
            for mode in draw.sample([*modes], len(modes)):
                state.plane.watchers, state.trace_ratio = modes[mode], 1.0 if "otel" in mode else None
                begin = time.thread_time(), time.perf_counter()
                await asyncio.create_task(request(app))
                loop, wall = time.thread_time() - begin[0], time.perf_counter() - begin[1]
                if number >= WARM:
                    found[mode].append((1e6 * loop, 1e6 * wall))
    await state.pipeline.close()
    return found


def report(found: dict[str, list[tuple[float, float]]]) -> None:
    print(f"{'':12}{'loop p10':>10}{'adds':>8}{'p50':>10}{'adds':>8}{'wall p50':>10}{'adds':>8}   us")
    base: tuple[float, ...] = ()
    for mode, each in found.items():
        loop, wall = (np.array(values) for values in zip(*each, strict=True))
        shown = (float(np.quantile(loop, 0.1)), float(np.median(loop)), float(np.median(wall)))
        base = base or shown
        print(
            f"{mode:12}" + "".join(f"{value:10.1f}{value - off:+8.1f}" for value, off in zip(shown, base, strict=True))
        )


async def elsewhere(count: int = 2000) -> None:
    """What the threads then do with a request: microseconds of their time, best tenth."""
    state, ends = plane("plane"), list[Ended]()
    state.plane.watchers, state.trace_ratio = (ends.append,), 1.0
    await request(create_app(state))
    (end,), clean = ends, Redactor()
    sdk = Sdk(Collector(nowhere(), {}), 1.0)
    work: dict[str, Callable[[], object]] = {
        "a line as JSON": lambda: JsonLines(clean).of_end(end),
        "a line as text": lambda: TextLines(clean).of_end(end),
        "its spans": lambda: sdk.maker.spans(end, TraceContext.of((), 1.0)),
        "its spans as bytes": lambda: encode_spans(sdk.maker.spans(end, TraceContext.of((), 1.0))).SerializeToString(),
        "its metrics": lambda: sdk.meter.record(end),
    }
    for name, make in work.items():
        times = []
        for _ in range(count):
            begin = time.thread_time()
            make()
            times.append(1e6 * (time.thread_time() - begin))
        print(f"{name:20}{np.quantile(times, 0.1):8.1f} us")
    await state.pipeline.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000, help="of each mode")
    options = parser.parse_args()
    gc.freeze()
    sys.setswitchinterval(SWITCH_INTERVAL)  # as where an engine runs
    with collector() as url, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report(runner.run(measure(options.requests, url)))
        runner.run(elsewhere())


if __name__ == "__main__":
    main()
